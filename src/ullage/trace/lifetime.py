"""When each allocation was born and when it died, from the allocator's events.

An allocation is live at the positions birth <= p < death. The log may have been capped: an
allocation that was there before it began is born at its first position, one that outlives it never
dies.

    lives = find_lifetimes(record.events, record.first_position)
    lives.size_bytes[live_at(lives, position)].sum()
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ullage.errors import SnapshotError
from ullage.trace.model import EventKind, Events, Int64Array

# The death of what never dies: later than every position.
NEVER = np.iinfo(np.int64).max
_DEVICE_SHIFT = 56  # user-space addresses have no more bits: a device and one of them fit one key
MAX_ADDRESS = (1 << _DEVICE_SHIFT) - 1


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """All allocations as columns, ordered by device, address and birth; `death` is NEVER for what
    was never taken back.
    """

    birth: Int64Array
    death: Int64Array
    address: Int64Array
    size_bytes: Int64Array
    device: Int64Array

    def __len__(self) -> int:
        return len(self.birth)


def find_lifetimes(events: Events, first_position: int = 0) -> Lifetimes:
    """Pairs each block given out with the event that took it back.

    Raises:
        SnapshotError: a block has no address, or one beyond 56 bits.
    """
    block_events = np.flatnonzero(events.kind == EventKind.BLOCK)
    address = events.address[block_events]
    if len(address) and (address.min() < 0 or address.max() > MAX_ADDRESS):
        raise SnapshotError("the record holds a block address that is not an address of user space")
    device = events.device[block_events].astype(np.int64)
    size = events.size_bytes[block_events]
    key = _key(device, address)
    order = np.argsort(key, kind="stable")  # within one address the events stay in program order
    key, size, position = key[order], size[order], block_events[order] + first_position + 1

    is_first = np.ones(len(key), dtype=bool)
    is_first[1:] = key[1:] != key[:-1]
    is_birth = size > 0
    # The next event at the same address ends the life, whether it is a free or (were a free lost)
    # the next birth.
    death = np.full(len(key), NEVER, dtype=np.int64)
    death[:-1] = np.where(is_first[1:], NEVER, position[1:])
    # A free with no birth before it: the block was there when the log began.
    was_there = ~is_birth & is_first
    rows = np.flatnonzero(is_birth | was_there)
    return Lifetimes(
        birth=np.where(was_there[rows], first_position, position[rows]),
        death=np.where(was_there[rows], position[rows], death[rows]),
        address=address[order][rows],
        size_bytes=np.abs(size[rows]),
        device=device[order][rows],
    )


def live_at(lifetimes: Lifetimes, position: int) -> npt.NDArray[np.bool_]:
    """Which allocations are live at a position, as a mask."""
    return (lifetimes.birth <= position) & (position < lifetimes.death)


def find_blocks(
    lifetimes: Lifetimes, position: Int64Array, device: Int64Array, address: Int64Array
) -> Int64Array:
    """For each (position, device, address) the index of the live allocation that holds the address;
    len(lifetimes) for none.

    Nearly all addresses are starts of blocks and are found by one binary search. For the others the
    starts below are tried, nearest first, all queries at once, until the largest block of the
    record could not reach the address.
    """
    none = len(lifetimes)
    births = np.full(len(position), none, dtype=np.int64)
    if none == 0 or len(position) == 0:
        return births
    key = _key(lifetimes.device, lifetimes.address)
    starts, group = np.unique(key, return_inverse=True)
    # (address, birth) as one number, ascending because lifetimes are ordered so.
    span = int(max(lifetimes.birth.max(), position.max())) + 2
    ranked = group.astype(np.int64) * span + lifetimes.birth
    largest = int(lifetimes.size_bytes.max())

    keys = _key(device, address)
    start = np.searchsorted(starts, keys, side="right") - 1
    pending = np.flatnonzero(start >= 0)
    while len(pending):
        here = start[pending]
        pending = pending[keys[pending] - starts[here] < largest]
        here = start[pending]
        row = np.searchsorted(ranked, here * span + position[pending], side="right") - 1
        row = np.maximum(row, 0)
        holds = (
            (group[row] == here)
            & (lifetimes.birth[row] <= position[pending])
            & (position[pending] < lifetimes.death[row])
            & (keys[pending] < starts[here] + lifetimes.size_bytes[row])
        )
        births[pending[holds]] = row[holds]
        start[pending] -= 1
        pending = pending[~holds & (start[pending] >= 0)]
    return births


def _key(device: Int64Array, address: Int64Array) -> Int64Array:
    return (device << _DEVICE_SHIFT) | address
