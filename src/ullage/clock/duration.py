"""How long something takes: an interval of seconds, and what it rests on.

>>> Duration(1e-5, 2e-5, 4e-5, "measured").scaled(2).s
4e-05
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Width:
    """The interval around a prediction, as factors: of the measurements that were left out of a
    table, nine in ten lie between `low` and `high` times the prediction.
    """

    low: float
    high: float

    def widened(self, times: float) -> Width:
        """The interval as if the same error were made several times in the same direction."""
        return Width(self.low**times, self.high**times)

    def joined(self, other: Width) -> Width:
        """The interval of two errors that add up."""
        return Width(self.low * other.low, self.high * other.high)


@dataclass(frozen=True, slots=True)
class Duration:
    """The time of one kernel.

    Attributes:
        low_s, s, high_s: the lower bound, the likely value, and the upper bound.
        basis: what it was measured with, and what is assumed.
    """

    low_s: float
    s: float
    high_s: float
    basis: str

    def scaled(self, times: float) -> Duration:
        """The time of this kernel, several times in turn."""
        return Duration(self.low_s * times, self.s * times, self.high_s * times, self.basis)


def around(seconds: float, width: Width, basis: str) -> Duration:
    """The interval of a prediction. The likely value lies inside of it."""
    low, high = min(width.low, 1.0), max(width.high, 1.0)
    return Duration(seconds * low, seconds, seconds * high, basis)


def join_errors(errors: Collection[float], correlation: float = 0.0) -> float:
    """The size of the sum of errors, any two of which have this correlation: 1: all have the same
    direction.

    >>> join_errors([3.0, 4.0]), join_errors([3.0, 4.0], 1.0)
    (5.0, 7.0)
    """
    alike = sum(abs(error) for error in errors) ** 2
    alone = sum(error**2 for error in errors)
    return math.sqrt(correlation * alike + (1 - correlation) * alone)
