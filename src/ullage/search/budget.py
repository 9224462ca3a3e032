"""The budget of a search: memory of the device, changes of the training, time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ullage.act.techniques.technique import Semantics
from ullage.ground.errors import SpecError
from ullage.players.phantom.device import PhantomDevice, parse_budget

if TYPE_CHECKING:
    from ullage.search.search import Search

# The default time limit of a search, in seconds.
LIMIT_S = 900.0


class Limit:
    """The time limit of a search, and the search that it limits.

    Attributes:
        end_s: when it is over, by time.monotonic().
        search: the current search; None: none has begun.
        budget_bytes: the budget of that search.
    """

    def __init__(self, end_s: float) -> None:
        self._started_s, self.end_s = time.monotonic(), end_s
        self.search: Search | None = None
        self.budget_bytes = 0

    def is_late(self, share: float) -> bool:
        """True if this share of the time limit has passed."""
        passed = time.monotonic() - self._started_s
        return passed >= share * (self.end_s - self._started_s)

    def follow(self, search: Search, budget_bytes: int) -> Search:
        """Makes this the current search."""
        self.search, self.budget_bytes = search, budget_bytes
        return search


def find_budget(device: PhantomDevice, budget: str | int | None) -> int:
    """The memory of the device that a plan may use.

    Raises:
        SpecError: no option says how much there is, or the budget is more than the device has.
    """
    if budget is None:
        if device.is_unlimited:
            raise SpecError("no memory budget; give --gpu, --memory, --budget or --smallest-gpu")
        return device.gpu.total_bytes
    return parse_budget(device.gpu, budget)


def read_semantics(allow: str) -> Semantics:
    """The changes that techniques may make. Raises SpecError for an unknown word."""
    try:
        return Semantics(allow)
    except ValueError:
        raise SpecError(f"allow={allow!r} is not known; expected: {', '.join(Semantics)}") from None
