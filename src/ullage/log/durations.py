"""Durations counted in fixed logarithmic bins: percentiles of any number of them in bounded memory.

Each doubling from a microsecond on has 32 bins, so a bin's geometric middle is at most 1.1 % from
every duration in it. Bins are the same everywhere, so counts of several parts are added up.

    counts = Counter(bin_of(seconds) for seconds in durations)
    Durations(counts).percentile(0.99)      # within 1.1 %

Standard library alone: the writer of records counts with these in the user's interpreter.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

BINS_PER_DOUBLING = 32
NUM_BINS = 1 + BINS_PER_DOUBLING * 44
"""Up to 2^44 microseconds, 203 days; the last bin has what takes longer."""
RELATIVE_ERROR = 2 ** (1 / (2 * BINS_PER_DOUBLING)) - 1
"""The relative error of a percentile between a microsecond and 203 days."""
_LEAST_S = 1e-6


def bin_of(seconds: float) -> int:
    """The bin of a duration: 0 below a microsecond, or where it is not a number."""
    if not seconds >= _LEAST_S:
        return 0
    if seconds == math.inf:
        return NUM_BINS - 1
    return min(1 + int(BINS_PER_DOUBLING * math.log2(seconds / _LEAST_S)), NUM_BINS - 1)


def seconds_of(number: int) -> float:
    """The middle of a bin; that of bin 0 is a microsecond, its upper end."""
    if not number:
        return _LEAST_S
    return float(_LEAST_S * 2 ** ((number - 0.5) / BINS_PER_DOUBLING))


@dataclass(frozen=True, slots=True)
class Durations:
    """The number of durations in each bin."""

    counts: Mapping[int, int]

    @property
    def num(self) -> int:
        """The number of durations."""
        return sum(self.counts.values())

    def percentile(self, share: float) -> float | None:
        """The least duration that `share` (0 to 1) of all do not exceed, by the nearest rank, to
        `RELATIVE_ERROR`; None: there are no durations.
        """
        num = self.num
        if not num:
            return None
        rank, below = max(1, math.ceil(share * num)), 0
        for number in sorted(self.counts):
            below += self.counts[number]
            if below >= rank:
                return seconds_of(number)
        return None

    def without(self, part: Durations) -> Durations:
        """The durations that are not in a part of them."""
        rest = Counter(self.counts)
        rest.subtract(part.counts)
        return Durations({number: count for number, count in rest.items() if count > 0})


def sum_up(parts: Iterable[Durations]) -> Durations:
    """All durations of several parts."""
    total: Counter[int] = Counter()
    for part in parts:
        total.update(part.counts)
    return Durations(total)
