"""The seconds of a step by the clock, from the runs of a search.

A search needs the time of each block under each technique, to know of mixtures before they run. The
clock times whole steps. So the roofline divides a step among the blocks, and the clock says how
long the step is: what a technique adds to it is divided as the roofline divides what it adds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ullage.clock.step_time import Interval
from ullage.explain.run import RunReport
from ullage.plan.costs.roofline import Seconds

# Where a technique leaves the work as it is, such as a setting of the allocator, a smaller share
# than this is no difference in time.
_SAME = 1e-3
_TINY = 1e-12


class Timed(NamedTuple):
    """What the clock says of a run: its last whole step, and the tokens of it; 0: not known."""

    step: Interval
    num_tokens: int

    def times(self, num: int) -> Timed:
        """The time of several such steps, which together do what one of another program does."""
        return Timed(Interval(*(num * seconds for seconds in self.step)), self.num_tokens)

    def corrected(self, watched: Timed, clean: Timed) -> Timed:
        """The time of a run that recorded its operations as it were without that.

        Args:
            watched, clean: of the unchanged program, with that and without.
        """
        ends = zip(self.step, watched.step, clean.step, strict=True)
        return Timed(
            Interval(*(own * other / most if most else own for own, most, other in ends)),
            self.num_tokens,
        )


def timed(report: RunReport) -> Timed | None:
    """The time of a run's step; None: the run was not timed, or no step was whole."""
    time = report.time
    return None if time is None else Timed(time.extremes or time.step, time.num_tokens)


@dataclass(frozen=True, slots=True)
class ClockTimes:
    """Turns the roofline's seconds of a program's runs into the clock's.

    Attributes:
        roofline: of the unchanged program, by the roofline.
        step_s: the likely seconds of its step, by the clock; 0: it was not timed, and the
            roofline's seconds stay as they are.
    """

    roofline: Seconds
    step_s: float

    @property
    def is_timed(self) -> bool:
        """Whether the clock timed the unchanged program: else no two times could be compared."""
        return self.step_s > 0 and self.roofline.step > 0

    def seconds(self, seconds: Seconds, time: Timed | None) -> Seconds:
        """The seconds of a run.

        Args:
            seconds: by the roofline.
            time: by the clock; None: the roofline's, in proportion to the unchanged program.
        """
        if not self.is_timed:
            return seconds
        factor = self.step_s / self.roofline.step
        if time is None:
            return Seconds(factor * seconds.blocks, factor * seconds.step)
        extra_s = time.step.s - self.step_s
        if seconds.step == self.roofline.step and abs(extra_s) < _SAME * self.step_s:
            extra_s = 0.0
        blocks = factor * self.roofline.blocks + extra_s * self._weights(seconds, extra_s)
        return Seconds(blocks, self.step_s + extra_s)

    def _weights(self, seconds: Seconds, extra_s: float) -> npt.NDArray[np.float64]:
        """How the extra seconds are divided among the blocks, (num_blocks,)."""
        more = (seconds.blocks - self.roofline.blocks) * np.sign(extra_s)
        weights: npt.NDArray[np.float64] = np.maximum(more, 0.0)
        if not weights.sum():
            weights = np.ones_like(more)
        return weights / max(float(weights.sum()), _TINY)
