"""How far GPUs of one kind are apart: the interval of a step, and the wait for the slowest rank."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from ullage.clock.step_time import Interval, Share

# How far GPUs of one kind in one cluster are apart: 8 % on average, by their making and by their
# power management. One GPU may be half of it faster or slower than that of the measurements; of
# ranks that wait for one another the slowest counts, and the whole of it.
# Source: Sinha et al., Not All GPUs Are Created Equal, SC22, arXiv:2208.11035, abstract.
_APART: Final = 0.08
# Assumed: the 8 % are what the whiskers of a box plot span where the rates are normally
# distributed, 2.698 standard deviations to each side.
_DEVIATION: Final = _APART / (2 * 2.698)
WAITING: Final = "waiting for slower ranks"
"""The kind of time in which a usual GPU of a job waits for the slowest one."""


def slowest_of(num_ranks: int) -> float:
    """By which share the slowest of some GPUs of one kind is slower than a usual one.

    The expected largest of as many normal deviates, by Blom's approximation (1958).
    """
    if num_ranks < 2:
        return 0.0
    from statistics import NormalDist  # with decimal and fractions, for jobs of several ranks alone

    return _DEVIATION * NormalDist().inv_cdf((num_ranks - 0.375) / (num_ranks + 0.25))


def waiting_share(seconds: float) -> Share:
    """The wait as a share of a step."""
    interval = Interval(0.0, seconds, 2 * seconds)
    return Share(WAITING, interval, interval, 0)


class Spread(NamedTuple):
    """The spread of a step.

    Attributes:
        below, above: the shares of the deviations to the extremes that are left.
        computed: the share of the step that is computation.
        num_ranks: how many ranks wait for one another; 1: none.
    """

    below: float
    above: float
    computed: float
    num_ranks: int

    @property
    def waiting(self) -> float:
        """By which share of the step a usual rank waits for the slowest."""
        return self.computed * slowest_of(self.num_ranks)

    def of(self, extremes: Interval) -> Interval:
        """The interval of a step with these extremes, which have no wait."""
        low_s, seconds, high_s = extremes
        apart = self.computed * _APART
        more = apart - self.waiting if self.num_ranks > 1 else apart / 2
        less = apart / 2 + self.waiting
        likely_s = seconds * (1 + self.waiting)
        below_s = math.hypot(self.below * (seconds - low_s), less * seconds)
        above_s = math.hypot(self.above * (high_s - seconds), more * seconds)
        return Interval(max(0.0, likely_s - below_s), likely_s, likely_s + above_s)

    def extremes(self, extremes: Interval) -> Interval:
        """The extremes with the wait for the slowest rank, but for the lower one."""
        low_s, seconds, high_s = extremes
        return Interval(low_s, seconds * (1 + self.waiting), high_s * (1 + self.waiting))
