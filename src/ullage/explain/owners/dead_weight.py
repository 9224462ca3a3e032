"""Dead weight: blocks that are live at the peak although nothing reads or writes them any more.

The phantom records the last kernel, library call or copy that got the address of each block. A word
that may have been an argument counts as one, so a block is called dead too late, never too early. A
block that is live when the program ends might have been used later. It counts as dead only after
whole steps without a use; weights are used in every step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ullage.explain.moments.course import Course
from ullage.explain.moments.levels import Levels
from ullage.explain.moments.spikes import BRIEF_BIRTHS, levels_without
from ullage.explain.owners.matching import Match
from ullage.explain.owners.ownership import code_of
from ullage.log.blocks import BoolArray
from ullage.log.model import Category, Int64Array, UInt8Array
from ullage.log.replay import Replay

_MIN_IDLE_STEPS = 2


@dataclass(frozen=True, slots=True)
class DeadWeight:
    """The dead blocks at the peak.

    Attributes:
        last_use: (num_blocks,) the event before which each block of the device was last used; the
            block's birth if it was never used.
        blocks: the numbers of the dead blocks in `Replay.blocks`, the largest first.
        size_bytes: their total size.
        lower_peak_bytes: the peak if each of them were freed right after its last use.
    """

    last_use: Int64Array
    blocks: Int64Array
    size_bytes: int
    lower_peak_bytes: int


def find_dead_weight(
    match: Match, replay: Replay, levels: Levels, category: UInt8Array, course: Course
) -> DeadWeight | None:
    """Finds the dead blocks at the peak; None if uses were not recorded.

    Args:
        category: (num_blocks,) indices into CATEGORIES. Workspaces are never dead, because a
            library gets them once and keeps them.
    """
    last_use = find_last_uses(match, replay)
    if last_use is None:
        return None
    peak, blocks = levels.peak_event, replay.blocks
    # An operation may release a block a little after its last use, so a few more births must pass.
    num_later = np.searchsorted(blocks.birth, peak, "right") - np.searchsorted(
        blocks.birth, last_use, "left"
    )
    is_dead = blocks.is_live(peak) & (num_later > BRIEF_BIRTHS)
    is_dead &= category != code_of(Category.WORKSPACE)
    is_dead &= _is_settled(replay, course, last_use)
    numbers = np.flatnonzero(is_dead)
    return DeadWeight(
        last_use=last_use,
        blocks=numbers[np.argsort(-blocks.size_bytes[numbers], kind="stable")],
        size_bytes=int(blocks.size_bytes[numbers].sum()),
        lower_peak_bytes=int(levels_without(blocks, levels, numbers, last_use[numbers]).max()),
    )


def find_last_uses(match: Match, replay: Replay) -> Int64Array | None:
    """(num_blocks,) the event before which each block was last used; None: not recorded."""
    last_use, blocks = match.record.last_use, replay.blocks
    if last_use is None:
        return None
    if not len(match.recorded):
        return blocks.birth.copy()
    event = match.recorded.birth[match.row]
    is_known = (match.row >= 0) & (event >= 0)  # else it was allocated before the log began
    position = np.where(is_known, last_use[np.where(is_known, event, 0)], 0)
    used = match.event_after(np.maximum(position, event + match.record.first_position + 1))
    # A block that the record does not know counts as used until the end.
    return np.where(is_known, np.maximum(used, blocks.birth), replay.num_events)


def _is_settled(replay: Replay, course: Course, last_use: Int64Array) -> BoolArray:
    """Which blocks would not have been used again: the program freed them before its last step
    ended, or did not use them for whole steps until its end.
    """
    ends = course.step_ends
    last_end = int(ends[-1]) if len(ends) else replay.num_events
    num_idle = course.num_steps - course.step_at(last_use) - 1
    settled: BoolArray = (replay.blocks.death < last_end) | (num_idle >= _MIN_IDLE_STEPS)
    return settled
