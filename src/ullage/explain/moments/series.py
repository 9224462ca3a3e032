"""The memory of each category or module at a few hundred moments of a trace.

The events are split into equal intervals. Each moment is the event with the most allocated bytes in
its interval, so that no peak falls between two moments.
"""

from __future__ import annotations

import numpy as np

from ullage.explain.moments.levels import Levels
from ullage.log.replay import Replay
from ullage.log.snapshot import Int64Array

_NUM_MOMENTS = 256


def find_moments(levels: Levels) -> Int64Array:
    """Returns the events of the moments, ascending; -1 is before the first event."""
    allocated = levels.allocated_bytes
    begins = np.unique(np.linspace(0, len(allocated), _NUM_MOMENTS + 1).astype(np.int64))[:-1]
    ends = np.append(begins[1:], len(allocated))
    highest = [
        begin + int(np.argmax(allocated[begin:end]))
        for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)
    ]
    return np.array(highest, dtype=np.int64) - 1


def sum_at_moments(
    replay: Replay, moments: Int64Array, group: Int64Array, num_groups: int
) -> Int64Array:
    """Returns (num_groups, num_moments) live bytes; `group` has the group index of each block."""
    blocks = replay.blocks
    # A block is live at the moments from its birth to before its death.
    first = np.searchsorted(moments, blocks.birth, side="left")
    after = np.searchsorted(moments, blocks.death, side="left")
    changes = np.zeros((num_groups, len(moments) + 1), dtype=np.int64)
    np.add.at(changes, (group, first), blocks.size_bytes)
    np.subtract.at(changes, (group, after), blocks.size_bytes)
    levels: Int64Array = np.cumsum(changes, axis=1)[:, :-1]
    return levels
