"""What grows: call sites that hold more at the end of every step than at the end of the one before.

A program that repeats itself frees what a repetition made. What one line still holds after each
step, and more of it each time, is kept by something: a list, a cache, a loss with its graph. A
trace whose steps are not known, or that has few of them, says nothing: what happens once is no
growth.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ullage.explain.moments.course import Course, StepSource
from ullage.explain.owners.sites import Sites
from ullage.trace.replay import Replay
from ullage.trace.snapshot import Int64Array

# The first step sets up what stays: optimizer states, workspaces.
_MIN_STEPS = 4
_MAX_SAMPLES = 48
_RISING_FRAC = 0.7
# Of what grew, so much has to have come in the later half: else it was a cache that filled.
_LATER_FRAC = 0.3


@dataclass(frozen=True, slots=True)
class Growth:
    """A site whose live bytes rise from step to step.

    Attributes:
        site: number in `Sites.names`.
        size_bytes: by how much more it held after the last step than after the second, as asked
            for.
        num_blocks: likewise.
        bytes_per_step: how fast.
        first_step, last_step: between which it was measured.
        blocks: numbers of its live blocks after the last step, in `Replay.blocks`.
        is_replaced: whether each step's block takes the place of a smaller one, as a tensor that is
            grown by concatenation does; else blocks are added.
    """

    site: int
    size_bytes: int
    num_blocks: int
    bytes_per_step: float
    first_step: int
    last_step: int
    blocks: tuple[int, ...]
    is_replaced: bool


@dataclass(frozen=True, slots=True)
class StepLevels:
    """What each site held when steps ended, as tables of (num_samples, num_sites).

    Attributes:
        steps: (num_samples,) the steps; of a long trace a part of them.
        size_bytes, num_blocks: of live blocks; what was asked for of them.
    """

    steps: Int64Array
    size_bytes: Int64Array
    num_blocks: Int64Array


def find_step_levels(
    replay: Replay, sites: Sites, course: Course, *, is_recent: bool = False
) -> StepLevels:
    """What each site held at the end of steps; in long traces of some of them, all over the trace,
    or (`is_recent`) of the last ones, one after the other.
    """
    count = min(course.num_steps, _MAX_SAMPLES)
    first = course.num_steps - count if is_recent else 0
    steps = np.unique(np.linspace(first, course.num_steps - 1, count).astype(np.int64))
    blocks = replay.blocks
    site = sites.of_stack[blocks.stack].astype(np.int64)
    num_sites = len(sites.names)
    sizes = np.zeros((len(steps), num_sites), dtype=np.int64)
    counts = np.zeros((len(steps), num_sites), dtype=np.int64)
    for row, step in enumerate(steps):
        live = blocks.is_live(int(course.step_ends[step]) - 1)
        # What was asked for: the rounding of large blocks comes and goes.
        np.add.at(sizes[row], site[live], blocks.requested_bytes[live])
        counts[row] = np.bincount(site[live], minlength=num_sites)
    return StepLevels(steps, sizes, counts)


def find_growth(
    replay: Replay, sites: Sites, course: Course, levels: StepLevels
) -> tuple[Growth, ...]:
    """The sites that grow, that with the most bytes first."""
    if course.num_steps < _MIN_STEPS:
        return ()
    sizes = levels.size_bytes[1:]
    rises = np.diff(sizes, axis=0)
    is_rising = (rises > 0).mean(axis=0) >= _RISING_FRAC
    # What a fall takes back, such as a batch that was smaller, is less than what rises bring.
    grown = sizes[-1] - sizes[0]
    later = sizes[-1] - sizes[len(sizes) // 2]
    is_lasting = (later >= _LATER_FRAC * grown) & (-np.minimum(rises, 0).sum(axis=0) * 4 <= grown)
    grown_sites = [
        _growth(replay, sites, course, levels, site)
        for site in np.flatnonzero(is_rising & is_lasting & (grown > 0)).tolist()
    ]
    if course.source is StepSource.STACKS:
        # A loop that was guessed may be one that fills a list for what follows.
        grown_sites = [site for site in grown_sites if _is_there_at_end(replay, site)]
    return tuple(sorted(grown_sites, key=lambda growth: -growth.size_bytes))


def _is_there_at_end(replay: Replay, growth: Growth) -> bool:
    """Whether most of what grew is still there when the trace ends."""
    deaths = replay.blocks.death[list(growth.blocks)]
    return bool(2 * (deaths == replay.num_events).sum() >= len(deaths))


def _growth(replay: Replay, sites: Sites, course: Course, levels: StepLevels, site: int) -> Growth:
    first, last = int(levels.steps[1]), int(levels.steps[-1])
    blocks = replay.blocks
    own = sites.of_stack[blocks.stack] == site
    live = np.flatnonzero(own & blocks.is_live(int(course.step_ends[last]) - 1))
    size = int(levels.size_bytes[-1, site] - levels.size_bytes[1, site])
    added = int(levels.num_blocks[-1, site] - levels.num_blocks[1, site])
    return Growth(
        site=site,
        size_bytes=size,
        num_blocks=added,
        bytes_per_step=size / max(last - first, 1),
        first_step=first,
        last_step=last,
        blocks=tuple(live.tolist()),
        is_replaced=added < (last - first) // 2,
    )
