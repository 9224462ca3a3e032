"""The memory in use before the first event of a trace: the ranges from which its replay starts.

A trace may be the end of a longer one, as a ring keeps the newest events. Of a block from before
that is freed in it only the requested size is known, but the allocator leaves up to 1 MiB of a
range with a large block rather than split it off. Free ranges of the large pool are larger than
that, so a smaller gap belongs to the block before it; else the first block that is allocated behind
it shows where it ends.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ullage.log.rules import PAGE_BYTES, SMALL_BYTES, read_settings
from ullage.log.segment_lives import SegmentLives
from ullage.log.snapshot import Action, EventTable, Int64Array, Snapshot, UInt8Array

# Address, size, whether it is live, whether it is split to the last block, and its segment.
Ranges: TypeAlias = tuple[Int64Array, Int64Array, UInt8Array, UInt8Array, Int64Array]


class BlocksBefore(NamedTuple):
    """The blocks before the first event in the order of their addresses, as columns.

    Attributes:
        size_bytes: of one that is not exact, the least that it can have.
        death: the event that freed it.
        is_exact: whether the size is.
    """

    address: Int64Array
    size_bytes: Int64Array
    death: Int64Array
    is_exact: NDArray[np.bool_]


class _Segments(NamedTuple):
    """The segments before the first event in the order of their addresses."""

    address: Int64Array
    size_bytes: Int64Array
    splits_all: NDArray[np.bool_]


def lay_out_ranges(
    snapshot: Snapshot, device: int, blocks: BlocksBefore, lives: SegmentLives, problems: list[str]
) -> Ranges:
    """The ranges before the first event; contradictions are added to `problems`."""
    segments = _find_segments(snapshot, device, lives)
    sizes = _real_sizes(snapshot, device, blocks, segments)
    rows: list[tuple[int, int, int, int, int]] = []
    owner = np.searchsorted(segments.address, blocks.address, side="right") - 1
    at, odd = 0, []
    columns = zip(*(column.tolist() for column in segments), strict=True)
    for number, (begin, length, splits_all) in enumerate(columns):
        place, end = begin, begin + length
        while at < len(sizes) and owner[at] <= number:
            start, size = int(blocks.address[at]), int(sizes[at])
            at += 1
            if size <= 0 or start < place or start + size > end:
                odd.append(start)
                continue
            if start > place:
                rows.append((place, start - place, 0, splits_all, number))
            rows.append((start, size, 1, splits_all, number))
            place = start + size
        if place < end:
            rows.append((place, end - place, 0, splits_all, number))
    if odd:
        problems.append(
            f"{len(odd)} blocks overlap another, or are in no segment, such as that at {odd[0]:#x}"
        )
    table = np.array(rows, dtype=np.int64).reshape(-1, 5)
    address_column, size_column, live, split, segment = map(np.ascontiguousarray, table.T)
    return (
        address_column, size_column, live.astype(np.uint8), split.astype(np.uint8), segment
    )  # fmt: skip


def _find_segments(snapshot: Snapshot, device: int, lives: SegmentLives) -> _Segments:
    """The segments before the first event. What lies side by side in an expandable segment is one,
    however it was mapped: blocks reach over mappings.
    """
    was_there = np.flatnonzero(lives.birth == -1)
    was_there = was_there[np.argsort(lives.address[was_there])]
    address, size = lives.address[was_there], lives.size_bytes[was_there]
    expandable = _is_expandable(snapshot, device, address)
    stays = lives.death[was_there] == len(snapshot.events_of(device))
    is_small = np.where(stays, _is_small_at_end(snapshot, device, address), size == PAGE_BYTES)
    splits_all = expandable | is_small
    if not len(address):
        return _Segments(address, size, splits_all)
    is_next = (address[:-1] + size[:-1] == address[1:]) & expandable[:-1] & expandable[1:]
    firsts = np.flatnonzero(np.insert(~is_next, 0, True))
    return _Segments(address[firsts], np.add.reduceat(size, firsts), splits_all[firsts])


def _is_expandable(snapshot: Snapshot, device: int, address: Int64Array) -> NDArray[np.bool_]:
    """Which ranges are of expandable segments: by the segment there at the end, else by how the
    range goes.
    """
    table, events = snapshot.segments, snapshot.events_of(device)
    here = np.flatnonzero((table.device == device) & (table.is_expandable == 1))
    unmapped = events.action == Action.SEGMENT_UNMAP
    begins = np.concatenate([table.address[here], events.address[unmapped]])
    sizes = np.concatenate([table.total_bytes[here], events.size_bytes[unmapped]])
    order = np.argsort(begins, kind="stable")
    begins, ends = begins[order], np.maximum.accumulate((begins + sizes)[order])
    place = np.searchsorted(begins, address, side="right") - 1
    return (place >= 0) & (address < np.append(ends, 0)[place])


def _is_small_at_end(snapshot: Snapshot, device: int, address: Int64Array) -> NDArray[np.bool_]:
    """True if the segments that begin there are of the small pool, as the file says at its end."""
    table = snapshot.segments
    small = set(table.address[(table.device == device) & (table.is_large == 0)].tolist())
    return np.array([begin in small for begin in address.tolist()], dtype=bool)


def _real_sizes(
    snapshot: Snapshot, device: int, blocks: BlocksBefore, segments: _Segments
) -> Int64Array:
    sizes = blocks.size_bytes.copy()
    if not len(sizes) or not len(segments.address):
        return sizes
    owner = np.searchsorted(segments.address, blocks.address, side="right") - 1
    owner = np.maximum(owner, 0)
    limit = segments.address[owner] + segments.size_bytes[owner]
    following = np.append(blocks.address[1:], limit[-1:])
    least_end = blocks.address + sizes
    gap = np.minimum(following, limit) - least_end
    is_open = ~blocks.is_exact & ~segments.splits_all[owner] & (gap > 0)
    has_gap = (gap <= SMALL_BYTES) | (sizes >= read_settings(snapshot.settings).max_split)
    sizes[is_open & has_gap] += gap[is_open & has_gap]
    allocs = _Allocations(snapshot.events_of(device))
    for number in np.flatnonzero(is_open & ~has_gap).tolist():
        begin = int(least_end[number])
        first = allocs.first_between(begin, begin + SMALL_BYTES, int(blocks.death[number]))
        sizes[number] += 0 if first is None else first - begin
    return sizes


class _Allocations:
    """Where the blocks of a trace were allocated, to be asked for by address."""

    def __init__(self, events: EventTable) -> None:
        self._event = np.flatnonzero(events.action == Action.ALLOC)
        order = np.argsort(events.address[self._event], kind="stable")
        self._event = self._event[order]
        self._address = events.address[self._event]

    def first_between(self, begin: int, end: int, before_event: int) -> int | None:
        """The address of the first allocation from one address to another before an event."""
        low = int(np.searchsorted(self._address, begin, side="left"))
        high = int(np.searchsorted(self._address, end, side="right"))
        if low == high:
            return None
        first = low + int(self._event[low:high].argmin())
        return int(self._address[first]) if self._event[first] < before_event else None
