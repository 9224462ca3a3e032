"""What a piece of work costs: its time on the device, and what kind of work it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ullage.clock.duration import Duration

__all__ = ["Category", "Cost"]


class Category(Enum):
    """Kinds of work, as reports name them."""

    MATRIX_PRODUCTS = "matrix products"
    ATTENTION = "attention"
    CONVOLUTIONS = "convolutions"
    MEMORY_BOUND = "memory-bound kernels"
    COMMUNICATION = "communication"
    COPIES = "copies"
    UNKNOWN = "unknown kernels"


@dataclass(frozen=True, slots=True)
class Cost:
    """The time of a piece of work when nothing else runs.

    Attributes:
        duration: the interval of seconds, and its basis.
        category: the kind of work.
        flops: floating-point operations that count for the utilisation; 0: none.
        name: a short readable name for timelines, such as "flash attention backward".
    """

    duration: Duration
    category: Category
    name: str
    flops: float = 0.0
