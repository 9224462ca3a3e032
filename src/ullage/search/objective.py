"""The goal of a search."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ullage.facts.gpus.catalog import Gpu
from ullage.ground.errors import SpecError


class Objective(Enum):
    """Which of the plans that fit is the best: the one with the shortest step, the one with the
    cheapest tokens (or steps, where tokens are not known), or the one with the lowest peak.
    """

    TIME = "time"
    COST = "cost"
    MEMORY = "memory"


class Goal(NamedTuple):
    """The budget that a plan has to fit, on each GPU, and the order of the plans that do."""

    gpu: Gpu
    budget_bytes: int
    objective: Objective = Objective.TIME

    @property
    def is_for_memory(self) -> bool:
        """True if the plan is to take the least memory."""
        return self.objective is Objective.MEMORY


def read_objective(word: str, price: float | None) -> Objective:
    """Reads the goal of a search.

    Args:
        word: of the command line.
        price: dollars for a GPU-hour; None: not known.

    Raises:
        SpecError: no such objective, or one that needs a price.
    """
    try:
        objective = Objective(word)
    except ValueError:
        expected = ", ".join(each.value for each in Objective)
        raise SpecError(f"objective={word!r} is not known; expected: {expected}") from None
    if objective is Objective.COST and price is None:
        raise SpecError(
            "the cost is not known without the price of a GPU-hour; give price, in [fit] of "
            "ullage.toml"
        )
    return objective
