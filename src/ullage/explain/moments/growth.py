"""Growth: what is live at the end of a round, all together and by call site, and rises from round
to round. Rounds are steps; after the last of them, forward passes without gradients; and of a line
that allocates outside of all modules, its own calls.

A loop usually frees the memory that each iteration allocates. If blocks accumulate over the steps,
something keeps them alive: a list, a cache, a loss with its graph. What counts as growth:
log/growth.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from ullage.explain.moments.course import Course, Phase, StepSource
from ullage.explain.moments.steps import StepPeak
from ullage.explain.owners.owners import Owners
from ullage.explain.owners.ownership import code_of
from ullage.log.blocks import Blocks, BoolArray, held_before
from ullage.log.growth import MIN_STEPS, find_trend
from ullage.log.model import Category, Int64Array, Request, UInt8Array

if TYPE_CHECKING:  # a run's own report reads no trace
    from ullage.explain.owners.sites import Sites
    from ullage.log.replay import Replay

BOUNDED = (
    Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE, Category.BUFFER,
    Category.WORKSPACE,
)  # fmt: skip
"""They come when a parameter, such as an expert's, is first used: there is an end to them."""
# Of a loop that nobody recorded: three iterations may be three stages.
_MIN_GUESSED_STEPS = 4
# Of a line by itself: a model may have a few layers of one size.
_MIN_CALLS = 6
_EVEN = 2.0
"""Times the usual number of events between two calls."""
_MAX_SAMPLES = 48


@dataclass(frozen=True, slots=True)
class Growth:
    """A site whose live bytes rise from step to step.

    Attributes:
        site: the index in `Sites.names`.
        size_bytes: the increase in requested bytes from the end of the second step to the end of
            the last.
        num_blocks: the increase in live blocks over the same steps.
        bytes_per_step: the rate of growth.
        first_step, last_step: the rounds between which the growth was measured.
        blocks: the indices in `Replay.blocks` of the site's live blocks after the last step.
        is_replaced: whether each step's block replaces a smaller one, as when a tensor grows by
            concatenation; otherwise blocks are added.
        ends: the event before which each round ended.
        unit: what a round is: a "step", a "forward pass" or a "call".
    """

    site: int
    size_bytes: int
    num_blocks: int
    bytes_per_step: float
    first_step: int
    last_step: int
    blocks: tuple[int, ...]
    is_replaced: bool
    ends: Int64Array = field(repr=False)
    unit: str = "step"


@dataclass(frozen=True, slots=True)
class SiteLevels:
    """The live blocks of each site when steps ended, as tables of (num_samples, num_sites).

    Attributes:
        steps: (num_samples,) the steps; a sample of them in a long trace.
        size_bytes: the requested bytes of the live blocks.
        num_blocks: the number of live blocks.
    """

    steps: Int64Array
    size_bytes: Int64Array
    num_blocks: Int64Array


def find_site_levels(
    replay: Replay, sites: Sites, course: Course, *, is_recent: bool = False
) -> SiteLevels:
    """Measures the live blocks of each site at the ends of steps. A long trace is sampled evenly,
    or, if `is_recent`, at its last consecutive steps.
    """
    alike = np.arange(course.num_steps) if course.alike is None else course.alike
    count = min(len(alike), _MAX_SAMPLES)
    first = len(alike) - count if is_recent else 0
    steps = alike[np.unique(np.linspace(first, len(alike) - 1, count).astype(np.int64))]
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
    return SiteLevels(steps, sizes, counts)


def find_growth(
    replay: Replay, sites: Sites, course: Course, levels: SiteLevels
) -> tuple[Growth, ...]:
    """Returns the sites that grow, the largest growth first: over steps, and over what came after
    them.
    """
    by_step = _find_by_steps(replay, sites, course, levels)
    known = {growth.site for growth in by_step}
    later = [each for each in _find_later(replay, sites, course) if each.site not in known]
    return tuple(sorted([*by_step, *later], key=lambda growth: -growth.size_bytes))


def _find_later(replay: Replay, sites: Sites, course: Course) -> list[Growth]:
    """The blocks that grow after the last step, or where there is none."""
    if not course.has_phases:
        return []
    begin = int(course.step_ends[-1]) if course.num_steps else 0
    is_pass = (course.phase == Phase.FORWARD) & ~course.grad & (course.begin >= begin)
    ends = np.append(course.begin, replay.num_events)[1:][is_pass]
    if len(ends) < MIN_STEPS:
        return list(_find_by_calls(replay, sites, course, begin))
    passes = replace(course, step_ends=ends, source=StepSource.RECORD, alike=None)
    levels = find_site_levels(replay, sites, passes)
    grown = _find_by_steps(replay, sites, passes, levels)
    return [replace(growth, unit="forward pass") for growth in grown]


def _find_by_calls(replay: Replay, sites: Sites, course: Course, begin: int) -> Iterator[Growth]:
    """The lines outside of all modules that allocate again and again, at even intervals and until
    the trace ends.
    """
    blocks = replay.blocks
    is_outside = course.phase[course.region_at(blocks.birth)] == Phase.OUTSIDE
    later = np.flatnonzero(is_outside & (blocks.birth >= begin))
    site = sites.of_stack[blocks.stack[later]].astype(np.int64)
    for number in np.flatnonzero(np.bincount(site) >= _MIN_CALLS).tolist():
        own = later[site == number]
        births = np.unique(blocks.birth[own])
        gaps = np.diff(np.append(births, replay.num_events))
        if len(births) < _MIN_CALLS or gaps[1:].max() > max(_EVEN * np.median(gaps), _MIN_CALLS):
            continue
        ends = np.append(births[1:], replay.num_events)
        calls = replace(course, step_ends=ends, source=StepSource.RECORD, alike=None)
        levels = find_site_levels(replay, sites, calls)
        growth = _growth(replay, sites, calls, levels, number)
        if not number or growth is None:
            continue
        # A call may allocate several tensors, of which it keeps one.
        calls_kept = max(growth.num_blocks, 1)
        is_replaced = calls_kept < _MIN_CALLS // 2
        if not is_replaced:
            growth = replace(
                growth,
                bytes_per_step=growth.size_bytes / calls_kept,
                first_step=0,
                last_step=calls_kept,
            )
        yield replace(growth, is_replaced=is_replaced, unit="call")


def _find_by_steps(
    replay: Replay, sites: Sites, course: Course, levels: SiteLevels
) -> list[Growth]:
    least = MIN_STEPS if course.source is StepSource.RECORD else _MIN_GUESSED_STEPS
    if len(levels.steps) < least:
        return []
    sizes = levels.size_bytes
    grown_sites = [
        growth
        for site in np.flatnonzero(sizes[-1] > sizes[_first_row(levels)]).tolist()
        if (growth := _growth(replay, sites, course, levels, site)) is not None
        and not _goes_up_and_down(replay, sites, growth)
    ]
    if course.source is StepSource.STACKS:
        # A guessed loop may be one that fills a list for later use: it
        # is one only if most of its live blocks still exist when the trace ends.
        is_left = replay.blocks.death == replay.num_events
        grown_sites = [
            site for site in grown_sites if 2 * is_left[list(site.blocks)].sum() >= len(site.blocks)
        ]
    return grown_sites


def _goes_up_and_down(replay: Replay, sites: Sites, growth: Growth) -> bool:
    """True if blocks of one size come, and go several at a time: what replaces others is larger."""
    blocks = replay.blocks
    own = sites.of_stack[blocks.stack] == growth.site
    before = own & blocks.is_live(int(growth.ends[growth.first_step]) - 1)
    sizes = (blocks.requested_bytes[of].max(initial=0) for of in (before, list(growth.blocks)))
    return growth.is_replaced and next(sizes) >= next(sizes)


def _first_row(levels: SiteLevels) -> int:
    """The first step that counts: of four or more the second."""
    return int(len(levels.steps) > MIN_STEPS)


def _growth(
    replay: Replay, sites: Sites, course: Course, levels: SiteLevels, site: int
) -> Growth | None:
    numbers = levels.steps if course.alike is None else course.alike.searchsorted(levels.steps)
    trend = find_trend(levels.size_bytes[:, site].tolist(), numbers.tolist())
    if trend is None:
        return None
    row = _first_row(levels)
    first, last = int(levels.steps[row]), int(levels.steps[-1])
    blocks = replay.blocks
    own = sites.of_stack[blocks.stack] == site
    live = np.flatnonzero(own & blocks.is_live(int(course.step_ends[last]) - 1))
    size = int(levels.size_bytes[-1, site] - levels.size_bytes[row, site])
    added = int(levels.num_blocks[-1, site] - levels.num_blocks[row, site])
    return Growth(
        site=site,
        size_bytes=size,
        num_blocks=added,
        bytes_per_step=trend.rate,
        first_step=first,
        last_step=last,
        blocks=tuple(live.tolist()),
        is_replaced=added < round(size / trend.rate) // 2,
        ends=course.step_ends,
    )


def step_growth(
    steps: Sequence[StepPeak], blocks: Blocks, owners: Owners, course: Course, device: int
) -> float | None:
    """By how many bytes more is live on a device after each step that did the same as the last; 0:
    by none. None: there are fewer than three such steps.
    """
    own = has_no_end(owners.category) & (blocks.device == device)
    requested = replace(blocks, size_bytes=blocks.requested_bytes)
    lives = held_before(requested, blocks.num_events, own)[course.step_ends]
    return rate_of(steps, lives, num_done(course.requests, course.step_ends))


def rate_of(
    steps: Sequence[StepPeak], lives: Int64Array, numbers: Int64Array | None = None
) -> float | None:
    """The rate of `step_growth`, of what is live after each whole step.

    Args:
        lives: (num_whole,) bytes.
        numbers: (num_whole,) what counts in place of these steps, such as requests.
    """
    whole = [step for step in steps if step.is_complete]
    rows = [row for row, step in enumerate(whole) if step.roots == whole[-1].roots]
    # Batches that become larger take more memory, and there is an end to that.
    sizes = [sum(map(prod, itertools.chain(*whole[row].inputs))) for row in rows]
    if find_trend(sizes) is not None:
        rows = [row for row in rows if whole[row].inputs == whole[-1].inputs]
    if len(rows) < MIN_STEPS:
        return None
    trend = find_trend(lives[rows].tolist(), None if numbers is None else numbers[rows].tolist())
    return 0.0 if trend is None else trend.rate


def has_no_end(category: UInt8Array) -> BoolArray:
    """Which blocks are of a category that may grow for ever."""
    return np.isin(category, list(map(code_of, BOUNDED)), invert=True)


def num_done(requests: Sequence[Request], ends: Int64Array) -> Int64Array | None:
    """(num_ends,) how many of the requests replayed were done then; None: there were none."""
    if not requests:
        return None
    done = np.sort([request.end for request in requests])
    number: Int64Array = done.searchsorted(ends, side="right")
    return number
