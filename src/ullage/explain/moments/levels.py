"""The memory in use on a device after each event of a snapshot's trace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ullage.trace.replay import Replay
from ullage.trace.snapshot import Int64Array


@dataclass(frozen=True, slots=True)
class Levels:
    """Columns of bytes with one entry more than there are events: entry 0 is before the first
    event, entry i + 1 is after event i.

    Attributes:
        allocated_bytes: the size of the live blocks, with rounding.
        requested_bytes: the size of the live blocks as requested.
        reserved_bytes: the size of the segments.
    """

    allocated_bytes: Int64Array
    requested_bytes: Int64Array
    reserved_bytes: Int64Array

    @property
    def peak_event(self) -> int:
        """The first event after which allocated bytes peak; -1 is before the first event."""
        return int(np.argmax(self.allocated_bytes)) - 1

    @property
    def peak_reserved_event(self) -> int:
        """The event after which reserved bytes peak; of several, the one with most allocated."""
        highest = np.flatnonzero(self.reserved_bytes == self.reserved_bytes.max())
        return int(highest[np.argmax(self.allocated_bytes[highest])]) - 1


def find_levels(replay: Replay) -> Levels:
    """Returns the levels of a replayed trace."""
    blocks, segments = replay.blocks, replay.segments
    return Levels(
        allocated_bytes=_level(replay, blocks.birth, blocks.death, blocks.size_bytes),
        requested_bytes=_level(replay, blocks.birth, blocks.death, blocks.requested_bytes),
        reserved_bytes=_level(replay, segments.birth, segments.death, segments.size_bytes),
    )


def _level(replay: Replay, birth: Int64Array, death: Int64Array, size: Int64Array) -> Int64Array:
    """Returns the total size of the live blocks or segments after each event."""
    changes = np.zeros(replay.num_events + 1, dtype=np.int64)
    np.add.at(changes, birth + 1, size)
    ends = death < replay.num_events
    np.subtract.at(changes, death[ends] + 1, size[ends])
    return np.cumsum(changes)
