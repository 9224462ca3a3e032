"""The seconds of a step and of its blocks, as the clock times the runs of a search.

A search needs the time of each block under each technique, to know of mixtures before they run. The
clock knows the module of each piece of work, so that it says what each block adds to a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt

from ullage.clock.step_time import Interval
from ullage.explain.run import RunReport
from ullage.ground.protocol.plain import As, Mark
from ullage.log.model import Int64Array
from ullage.search.costs.blocks import Block, block_of_module

# Where a technique leaves the work unchanged, such as a setting of the allocator, a smaller share
# than this is no difference in time.
_SAME = 1e-3


@dataclass(frozen=True, slots=True)
class Timed:
    """The times of a run: its last step, and the tokens of it; 0: not known."""

    step: Annotated[Interval, As("step_s")]
    num_tokens: Annotated[int, As("tokens_per_step"), Mark.NULL]

    def times(self, num: int) -> Timed:
        """The time of several such steps, which together do what one of another program does."""
        return Timed(Interval(*(num * seconds for seconds in self.step)), self.num_tokens)


def timed(report: RunReport) -> Timed | None:
    """The time of a run's step; None: the run was not timed, or no step ended."""
    time = report.time
    return None if time is None else Timed(time.extremes or time.step, time.num_tokens)


@dataclass(frozen=True, slots=True)
class Seconds:
    """The time of a step.

    Attributes:
        blocks: (num_blocks,) what each block adds to the step.
        step: of all; 0: the run was not timed.
    """

    blocks: npt.NDArray[np.float64]
    step: float

    def evened(self, alike: Int64Array) -> Seconds:
        """The same step, in which blocks that do the same work take equally long. In another
        mixture, another of them waits for the host, or is what a copy is hidden behind.

        Args:
            alike: (num_blocks,) the number of each block's group.
        """
        means = np.bincount(alike, self.blocks) / np.bincount(alike)
        return Seconds(means[alike], self.step)

    def beside(self, base: Seconds) -> Seconds:
        """The seconds of a run in which all blocks have one treatment.

        What the treatment adds to the step is divided among the blocks in proportion to what it
        adds to each, also what it adds outside of them, so that a plan that treats all blocks is
        expected to take what this run took.

        Args:
            base: of the unchanged program.
        """
        extra_s = self.step - base.step
        if not self.step or abs(extra_s) < _SAME * base.step:
            return base
        more = np.maximum((self.blocks - base.blocks) * np.sign(extra_s), 0.0)
        weights = more if more.any() else np.ones_like(more)
        return Seconds(base.blocks + extra_s * weights / max(weights.sum(), 1.0e-300), self.step)


def step_seconds(report: RunReport, blocks: Sequence[Block]) -> Seconds:
    """The seconds of a run's step, and of each block in it; 0 where the run was not timed."""
    time = timed(report)
    if report.time is None or time is None:
        return Seconds(np.zeros(len(blocks)), 0.0)
    by_module = report.time.seconds_by_module()
    *block_of, _ = block_of_module(blocks, list(by_module))
    seconds = np.zeros(len(blocks) + 1)
    np.add.at(seconds, block_of, list(by_module.values()))
    return Seconds(seconds[:-1], time.step.s)
