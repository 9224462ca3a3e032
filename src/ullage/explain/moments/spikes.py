"""Short-lived blocks that raise the peak.

A block that is live only briefly costs as much as a persistent one if it is live at the peak.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ullage.explain.moments.levels import Levels
from ullage.log.blocks import Blocks, BoolArray, sum_live
from ullage.log.model import Int64Array

if TYPE_CHECKING:
    from ullage.log.replay import Replay

# A brief block, such as the workspace of one operation, is freed before more than this many others
# are allocated.
BRIEF_BIRTHS = 3
_MAX_BLOCKS = 8


@dataclass(frozen=True, slots=True)
class Spike:
    """Brief blocks that are live at the peak.

    Attributes:
        blocks: their indices in `Replay.blocks`, the largest block first; at most 8.
        size_bytes: the total size of all brief blocks at the peak.
        lower_peak_bytes: the peak without any brief blocks.
    """

    blocks: tuple[int, ...]
    size_bytes: int
    lower_peak_bytes: int


def find_spike(replay: Replay, levels: Levels) -> Spike | None:
    """Finds the brief blocks at the peak; returns None where there are none."""
    blocks = replay.blocks
    peak = levels.peak_event
    is_brief = find_brief(replay)
    here = np.flatnonzero(is_brief & blocks.is_live(peak))
    if not len(here):
        return None
    order = here[np.argsort(-blocks.size_bytes[here], kind="stable")]
    return Spike(
        blocks=tuple(order[:_MAX_BLOCKS].tolist()),
        size_bytes=int(blocks.size_bytes[here].sum()),
        lower_peak_bytes=int(levels_without(blocks, levels, np.flatnonzero(is_brief)).max()),
    )


def find_brief(replay: Replay) -> BoolArray:
    """Returns a (num_blocks,) mask of the blocks freed before more than 3 others were allocated."""
    blocks = replay.blocks
    ended = (blocks.birth >= 0) & (blocks.death < replay.num_events)
    return ended & (blocks.death <= birth_after(replay, BRIEF_BIRTHS + 1))


def birth_after(replay: Replay, count: int) -> Int64Array:
    """Returns (num_blocks,) the event of the count-th birth after each block's own."""
    births = replay.blocks.birth  # ascending
    padded = np.append(births, np.full(count, replay.num_events))
    return padded[np.arange(len(births)) + count]


def levels_without(
    blocks: Blocks,
    levels: Levels,
    numbers: Int64Array,
    death: Int64Array | None = None,
    left_frac: float = 0.0,
) -> Int64Array:
    """Returns the levels of allocated bytes without some blocks, or with those freed earlier.

    Args:
        numbers: of the blocks to remove or to free earlier.
        death: of each of them the event at which it is freed instead; None removes it.
        left_frac: the share of each that stays.
    """
    birth, end = blocks.birth[numbers], blocks.death[numbers]
    start = birth if death is None else np.clip(death, birth, end)
    sizes = (blocks.size_bytes[numbers] * (1 - left_frac)).astype(np.int64)
    return levels.allocated_bytes - sum_live(start, end, sizes, blocks.num_events)
