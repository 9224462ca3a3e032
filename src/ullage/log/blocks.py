"""The table of blocks: where each lay, what it was, from which event to which it was live.

A player's record and the replay of a public snapshot both come to it, and all that is explained is
read from it. A block is live right after an event if birth <= event < death. A *position* of a
record is the number of events of its process before a moment, with those that a capped log lost.

    blocks = read_blocks(record)
    blocks.size_bytes[blocks.is_live(event)]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ullage.ground.errors import SnapshotError
from ullage.log.model import EventKind, Int64Array, Record, UInt32Array

if TYPE_CHECKING:
    from ullage.log.segment_lives import SegmentLives

BoolArray = npt.NDArray[np.bool_]

NEVER = np.iinfo(np.int64).max
"""Later than every event and position."""
_DEVICE_SHIFT = 56  # user-space addresses have no more bits: a device and one of them fit one key
MAX_ADDRESS = (1 << _DEVICE_SHIFT) - 1


@dataclass(frozen=True, slots=True)
class Blocks:
    """Every block of a log, in the order of their births; those from before come first.

    Attributes:
        address, size_bytes: of the block; the size with rounding.
        requested_bytes: what the program requested; a record has the size in its place.
        birth: the event that allocated it; -1 where it was there before the first.
        death: the event that ended it; the number of events where it is there at the end.
        stack: of the allocation; 0 where it is not known.
        stream: the CUDA stream's handle; of a block from before the trace, that of its segment.
        is_exact: whether the size is; of a block from before that is gone at the end, and of those
            after a contradiction, it is the least that the rounding gives.
        device: the index of its device.
        num_events: of the log.
        first_position: of the log, before its first event.
    """

    address: Int64Array
    size_bytes: Int64Array
    requested_bytes: Int64Array
    birth: Int64Array
    death: Int64Array
    stack: UInt32Array
    stream: Int64Array
    is_exact: BoolArray
    device: Int64Array
    num_events: int
    first_position: int = 0

    def __len__(self) -> int:
        return len(self.address)

    def is_live(self, event: int) -> BoolArray:
        """Which blocks are live right after an event; -1 is before the first."""
        return (self.birth <= event) & (event < self.death)


def read_blocks(record: Record) -> Blocks:
    """The blocks of all devices of a record.

    Raises:
        SnapshotError: a block has no address, or one beyond 56 bits.
    """
    events = record.events
    rows = np.flatnonzero(events.kind == EventKind.BLOCK)
    address = events.address[rows]
    if len(address) and (address.min() < 0 or address.max() > MAX_ADDRESS):
        raise SnapshotError("the record holds a block address that is not an address of user space")
    key = _key(events.device[rows].astype(np.int64), address)
    birth, death, _ = pair_events(key, events.size_bytes[rows] > 0, rows, len(events))
    order = np.argsort(birth, kind="stable")
    birth, death = birth[order], death[order]
    event = np.where(birth >= 0, birth, death)
    size_bytes = np.abs(events.size_bytes[event])
    return Blocks(
        address=events.address[event],
        size_bytes=size_bytes,
        requested_bytes=size_bytes,
        birth=birth,
        death=death,
        stack=np.zeros(len(event), dtype=np.uint32),
        stream=np.zeros(len(event), dtype=np.int64),
        is_exact=np.ones(len(event), dtype=np.bool_),
        device=events.device[event].astype(np.int64),
        num_events=len(events),
        first_position=record.first_position,
    )


def pair_events(
    key: Int64Array, is_birth: BoolArray, event: Int64Array, num_events: int
) -> tuple[Int64Array, Int64Array, int]:
    """The births and deaths of blocks, by key, and how many of them were never freed before their
    place was given out again.

    Args:
        key: (num,) of the place of each event; the events of one place follow each other in time.
        is_birth: (num,) whether it allocates a block there, or ends one.
        event: (num,) its number, ascending.
        num_events: the death of what is never freed; what was never allocated is born at -1.
    """
    num, order = len(key), np.argsort(key, kind="stable")
    key, is_birth, event = key[order], is_birth[order], event[order]
    is_followed = np.append(key[1:] == key[:-1], np.False_)[:num]
    is_lost = is_birth & is_followed & np.append(is_birth[1:], np.False_)[:num]
    is_freed = is_birth & is_followed & ~is_lost
    rows = is_birth | ~np.append(np.False_, is_freed)[:num]
    follower = np.where(is_followed, np.append(event[1:], num_events)[:num], num_events)
    birth = np.where(is_birth, event, -1)[rows]
    return birth, np.where(is_birth, follower, event)[rows], int(is_lost.sum())


def held_before(
    lives: Blocks | SegmentLives, num_events: int, mask: BoolArray | slice = slice(None)
) -> Int64Array:
    """Bytes of the blocks of a mask, or of the segments, before each event, and after the last."""
    return sum_live(lives.birth[mask], lives.death[mask], lives.size_bytes[mask], num_events)


def sum_live(
    birth: Int64Array, death: Int64Array, size_bytes: Int64Array, num_events: int
) -> Int64Array:
    """(num_events + 1,) the bytes that are live before each event, and after the last."""
    changes = np.zeros(num_events + 2, dtype=np.int64)
    np.add.at(changes, birth + 1, size_bytes)
    np.subtract.at(changes, death + 1, size_bytes)
    return np.cumsum(changes)[:-1]


def find_blocks(
    blocks: Blocks, position: Int64Array, device: Int64Array, address: Int64Array
) -> Int64Array:
    """For each (position, device, address) the number of the live block that holds the address;
    len(blocks) for none.

    Nearly all addresses are starts of blocks and are found by one binary search. For the others the
    starts below are tried, nearest first, all queries at once, until the largest block of the
    record could not reach the address.
    """
    numbers = np.full(len(position), len(blocks), dtype=np.int64)
    if not len(blocks) or not len(position):
        return numbers
    event = position - blocks.first_position - 1
    own_keys = _key(blocks.device, blocks.address)
    order = np.argsort(own_keys, kind="stable")  # those at one address stay in order of birth
    own_keys, births = own_keys[order], blocks.birth[order]
    is_start = np.append(np.True_, own_keys[1:] != own_keys[:-1])
    starts, group = own_keys[is_start], is_start.cumsum() - 1
    # (address, birth) as one number, ascending.
    span = int(max(births.max(), event.max())) + 3
    ranked = group * span + births
    largest = int(blocks.size_bytes.max())

    keys = _key(device, address)
    start = np.searchsorted(starts, keys, side="right") - 1
    pending = np.flatnonzero(start >= 0)
    while len(pending):
        here = start[pending]
        pending = pending[keys[pending] - starts[here] < largest]
        here = start[pending]
        row = np.searchsorted(ranked, here * span + event[pending], side="right") - 1
        row = np.maximum(row, 0)
        number = order[row]
        holds = (
            (group[row] == here)
            & (births[row] <= event[pending])
            & (event[pending] < blocks.death[number])
            & (keys[pending] < starts[here] + blocks.size_bytes[number])
        )
        numbers[pending[holds]] = number[holds]
        start[pending] -= 1
        pending = pending[~holds & (start[pending] >= 0)]
    return numbers


def _key(device: Int64Array, address: Int64Array) -> Int64Array:
    return (device << _DEVICE_SHIFT) | address
