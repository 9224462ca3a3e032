"""Growth: call sites whose live bytes at the end of a step rise from step to step.

A loop usually frees the memory that each iteration allocates. If the blocks of one line accumulate
over the steps, something keeps them alive: a list, a cache, a loss with its graph. A trace whose
steps are unknown, or that has few of them, shows no growth: a single increase is no trend.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ullage.explain.moments.course import Course, StepSource
from ullage.explain.owners.sites import Sites
from ullage.trace.replay import Replay
from ullage.trace.snapshot import Int64Array

# The first step allocates persistent memory: optimizer states, workspaces.
_MIN_STEPS = 4
_MAX_SAMPLES = 48
_RISING_FRAC = 0.7
# At least this share of the growth must occur in the later half; otherwise a cache was filling.
_LATER_FRAC = 0.3


@dataclass(frozen=True, slots=True)
class Growth:
    """A site whose live bytes rise from step to step.

    Attributes:
        site: the index in `Sites.names`.
        size_bytes: the increase in requested bytes from the end of the second step to the end of
            the last.
        num_blocks: the increase in live blocks over the same steps.
        bytes_per_step: the rate of growth.
        first_step, last_step: the steps between which the growth was measured.
        blocks: the indices in `Replay.blocks` of the site's live blocks after the last step.
        is_replaced: whether each step's block replaces a smaller one, as when a tensor grows by
            concatenation; otherwise blocks are added.
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
    """The live blocks of each site when steps ended, as tables of (num_samples, num_sites).

    Attributes:
        steps: (num_samples,) the steps; a sample of them in a long trace.
        size_bytes: the requested bytes of the live blocks.
        num_blocks: the number of live blocks.
    """

    steps: Int64Array
    size_bytes: Int64Array
    num_blocks: Int64Array


def find_step_levels(
    replay: Replay, sites: Sites, course: Course, *, is_recent: bool = False
) -> StepLevels:
    """Measures the live blocks of each site at the ends of steps. A long trace is sampled evenly,
    or, if `is_recent`, at its last consecutive steps.
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
        # Requested bytes: the rounding of large blocks varies.
        np.add.at(sizes[row], site[live], blocks.requested_bytes[live])
        counts[row] = np.bincount(site[live], minlength=num_sites)
    return StepLevels(steps, sizes, counts)


def find_growth(
    replay: Replay, sites: Sites, course: Course, levels: StepLevels
) -> tuple[Growth, ...]:
    """Returns the sites that grow, the largest growth first."""
    if course.num_steps < _MIN_STEPS:
        return ()
    sizes = levels.size_bytes[1:]
    rises = np.diff(sizes, axis=0)
    is_rising = (rises > 0).mean(axis=0) >= _RISING_FRAC
    # Falls, such as after a smaller batch, must take back less than the rises add.
    grown = sizes[-1] - sizes[0]
    later = sizes[-1] - sizes[len(sizes) // 2]
    is_lasting = (later >= _LATER_FRAC * grown) & (-np.minimum(rises, 0).sum(axis=0) * 4 <= grown)
    grown_sites = [
        _growth(replay, sites, course, levels, site)
        for site in np.flatnonzero(is_rising & is_lasting & (grown > 0)).tolist()
    ]
    if course.source is StepSource.STACKS:
        # A guessed loop may be one that fills a list for later use.
        grown_sites = [site for site in grown_sites if _is_there_at_end(replay, site)]
    return tuple(sorted(grown_sites, key=lambda growth: -growth.size_bytes))


def _is_there_at_end(replay: Replay, growth: Growth) -> bool:
    """Returns whether most of the live blocks still exist when the trace ends."""
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
