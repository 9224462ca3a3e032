"""What a search may use: memory of the device, changes of the training, time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ullage.errors import SpecError
from ullage.phantom.device import PhantomDevice, parse_budget
from ullage.techniques.technique import Semantics

if TYPE_CHECKING:
    from ullage.plan.search import Search

# Seconds after which a search tries no more plans, unless it is told otherwise.
LIMIT_S = 900.0


class Limit:
    """When a search is to end, and which search that is.

    Attributes:
        search: the one that goes on; None: none has begun.
        budget_bytes: that it looks for.
    """

    def __init__(self, end_s: float) -> None:
        self._started_s, self._end_s = time.monotonic(), end_s
        self.search: Search | None = None
        self.budget_bytes = 0

    def is_late(self, share: float) -> bool:
        """Whether that share of the time is over."""
        passed = time.monotonic() - self._started_s
        return passed >= share * (self._end_s - self._started_s)

    def follow(self, search: Search, budget_bytes: int) -> Search:
        """This search goes on from here."""
        self.search, self.budget_bytes = search, budget_bytes
        return search


def find_budget(device: PhantomDevice, budget: str | int | None) -> int:
    """What may be used of the device.

    Raises:
        SpecError: nothing says how much there is, or the budget is more than the device has.
    """
    if budget is None:
        if device.is_unlimited:
            raise SpecError("fit into what? give --gpu, --memory, --budget or --smallest-gpu")
        return device.gpu.total_bytes
    return parse_budget(device.gpu, budget)


def read_semantics(allow: str) -> Semantics:
    """What techniques may change; SpecError where the word is not known."""
    if allow == "none":
        raise SpecError(
            "a search without techniques finds no plan: `ullage run` says whether it fits as it "
            "is; --allow none goes with --max-batch and --largest"
        )
    try:
        return Semantics(allow)
    except ValueError:
        raise SpecError(f"allow={allow!r} is not known; expected: {', '.join(Semantics)}") from None
