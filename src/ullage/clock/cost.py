"""The cost of a piece of work: its time on the device, and what kind of work it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from ullage.clock.contention import Bound, Load
from ullage.clock.duration import Duration


class Category(Enum):
    """Kinds of work, as reports name them."""

    MATRIX_PRODUCTS = "matrix products"
    ATTENTION = "attention"
    CONVOLUTIONS = "convolutions"
    MEMORY_BOUND = "memory-bound kernels"
    COMMUNICATION = "communication"
    COPIES = "copies"
    UNKNOWN = "unknown kernels"


_BOUNDS: Final = {
    Category.MATRIX_PRODUCTS: Bound.MULTIPROCESSORS,
    Category.ATTENTION: Bound.MULTIPROCESSORS,
    Category.CONVOLUTIONS: Bound.MULTIPROCESSORS,
    Category.MEMORY_BOUND: Bound.BANDWIDTH,
    Category.UNKNOWN: Bound.BANDWIDTH,
}


@dataclass(frozen=True, slots=True)
class Cost:
    """The time of a piece of work when nothing else runs.

    Attributes:
        duration: the interval of seconds, and its basis.
        category: the kind of work.
        flops: floating-point operations that count for the utilisation; 0: none.
        name: a short readable name for timelines, such as "flash attention backward".
        load: what a message takes from kernels beside it; None: nothing, or it is not a message.
    """

    duration: Duration
    category: Category
    name: str
    flops: float = 0.0
    load: Load | None = None

    @property
    def use(self) -> Bound | Load | None:
        """The shared resources of the device that it needs; None: nothing."""
        return self.load or _BOUNDS.get(self.category)
