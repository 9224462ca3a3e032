"""The memory in use on a device after each event of a log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ullage.log.blocks import Blocks, held_before
from ullage.log.model import EventKind, Int64Array, Record

if TYPE_CHECKING:
    from ullage.log.replay import Replay

_NUM_MOMENTS = 256


@dataclass(frozen=True, slots=True)
class Levels:
    """Columns of bytes with one entry more than there are events: entry 0 is before the first
    event, entry i + 1 is after event i.

    Attributes:
        allocated_bytes: the size of the live blocks, with rounding.
        reserved_bytes: the size of the segments.
    """

    allocated_bytes: Int64Array
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
    return Levels(
        held_before(replay.blocks, replay.num_events),
        held_before(replay.segments, replay.num_events),
    )


def read_levels(record: Record, blocks: Blocks, device: int) -> Levels:
    """Returns the levels of one device of a record; `blocks` has those of all."""
    events = record.events
    is_own = (events.device == device) & (events.kind == EventKind.BLOCK)
    reserved = events.reserved_bytes[is_own]
    # What was reserved before the first event is known only to be nothing when the record is whole.
    before = reserved[:1] if record.first_position and len(reserved) else np.zeros(1, np.int64)
    last_told = np.append(0, np.cumsum(is_own))
    return Levels(
        held_before(blocks, blocks.num_events, blocks.device == device),
        np.append(before, reserved)[last_told],
    )


def highest_between(levels: Int64Array, begin: Int64Array, end: Int64Array) -> Int64Array:
    """The highest of a column of levels over each interval of its entries, both ends included."""
    first = np.clip(begin, 0, len(levels) - 1)
    last = np.clip(end, first, len(levels) - 1)
    if not len(first):
        return np.zeros(0, dtype=np.int64)
    # reduceat takes half-open pairs and needs every index to exist: one entry more at the end,
    # never part of a result.
    pairs = np.stack((first, last + 1), axis=1).ravel()
    return np.asarray(np.maximum.reduceat(np.append(levels, 0), pairs)[::2], dtype=np.int64)


def find_moments(levels: Levels) -> Int64Array:
    """A few hundred events of a trace, ascending; -1 is before the first event: of each of as many
    equal intervals the one with the most allocated bytes, so that no peak falls between two.
    """
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
