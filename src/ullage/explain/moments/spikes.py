"""Short-lived blocks that lift the peak: without them it would be lower.

What lives for a moment costs as much as what stays, if the moment is that of the peak.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ullage.explain.moments.levels import Levels
from ullage.trace.replay import BoolArray, Replay
from ullage.trace.snapshot import Int64Array

# A block of an operation goes before so many others came.
BRIEF_BIRTHS = 3
_MAX_BLOCKS = 8


@dataclass(frozen=True, slots=True)
class Spike:
    """Brief blocks that are live at the peak.

    Attributes:
        blocks: their numbers in `Replay.blocks`, the largest first.
        size_bytes: of all of them.
        lower_peak_bytes: the peak of everything else.
    """

    blocks: tuple[int, ...]
    size_bytes: int
    lower_peak_bytes: int


def find_spike(replay: Replay, levels: Levels) -> Spike | None:
    """The brief blocks at the peak; None where there are none."""
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
        lower_peak_bytes=peak_without(replay, levels, is_brief),
    )


def find_brief(replay: Replay) -> BoolArray:
    """(num_blocks,) which blocks went before more than a few others came."""
    blocks = replay.blocks
    ended = (blocks.birth >= 0) & (blocks.death < replay.num_events)
    return ended & (blocks.death <= birth_after(replay, BRIEF_BIRTHS + 1))


def birth_after(replay: Replay, count: int) -> Int64Array:
    """(num_blocks,) the event of the count-th birth after each block's own."""
    births = replay.blocks.birth  # ascending
    padded = np.append(births, np.full(count, replay.num_events))
    return padded[np.arange(len(births)) + count]


def peak_without(
    replay: Replay, levels: Levels, mask: BoolArray, death: Int64Array | None = None
) -> int:
    """The peak of allocated bytes had some blocks not been there, or had they died earlier.

    Args:
        gone: which blocks.
        death: (num_blocks,) the event that would have ended each; None: they never came.
    """
    blocks = replay.blocks
    numbers = np.flatnonzero(mask)
    start = blocks.birth[numbers] if death is None else death[numbers]
    start = np.maximum(start, blocks.birth[numbers])
    numbers, start = numbers[start < blocks.death[numbers]], start[start < blocks.death[numbers]]
    changes = np.zeros(replay.num_events + 2, dtype=np.int64)
    np.subtract.at(changes, start + 1, blocks.size_bytes[numbers])
    np.add.at(changes, blocks.death[numbers] + 1, blocks.size_bytes[numbers])
    return int((levels.allocated_bytes + np.cumsum(changes[:-1])).max())
