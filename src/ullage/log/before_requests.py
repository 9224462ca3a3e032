"""Requests that reproduce the memory state before the first event of a trace.

A request for the size of a whole segment creates the segment, and the block is freed at once. Then
one request is made for each block and each hole of the segment, in the order of their addresses.
The allocator splits each of them from the rest of that segment, because no other memory is free.
At the end the blocks in the holes are freed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ullage.ground.programs.allocator_replay import POOL
from ullage.ground.protocol.run import Platform
from ullage.log.addresses import in_order_of_request
from ullage.log.replay import Replay
from ullage.log.rules import PAGE_BYTES, SMALL_BYTES
from ullage.log.snapshot import Int64Array, SegmentTable, Snapshot


@dataclass(frozen=True, slots=True)
class Before:
    """The operations before those of the trace, and the blocks that only these operations use.

    Attributes:
        sizes, streams: of the blocks that fill holes.
        as_it_lay: the operations that rebuild the segments with their holes.
        packed: the operations that allocate the blocks alone.
    """

    sizes: Int64Array
    streams: Int64Array
    as_it_lay: Int64Array
    packed: Int64Array


class _Piece(NamedTuple):
    """A block or a hole of a segment; `block` is None for a hole."""

    size_bytes: int
    block: int | None


class _Place(NamedTuple):
    stream: int
    pool: int
    is_small: bool


def lay_out(
    snapshot: Snapshot,
    replay: Replay,
    device: int,
    numbers: tuple[Int64Array, Int64Array],
    platform: Platform,
) -> Before:
    """Returns the operations that lead to the state before the first event. The segments come in an
    order that gives them their places among each other on a system.

    numbers: (num_blocks,) the number of each block's stream, and of its pool.
    """
    blocks = replay.blocks
    there = np.flatnonzero(blocks.birth == -1)
    there = there[np.argsort(blocks.address[there])]
    starts = blocks.address[there]
    layout = _Layout(len(blocks))
    streams, pools = numbers
    for address, size in in_order_of_request(_ranges(snapshot, replay, device), platform):
        low, high = np.searchsorted(starts, [address, address + size]).tolist()
        inside = there[low:high].tolist()
        row = _row_at(snapshot.segments, device, address)
        is_small = size == PAGE_BYTES
        if row is not None:
            is_small = not snapshot.segments.is_large[row]
        place = _Place(
            int(streams[inside[0]]) if inside else 0, int(pools[inside[0]]) if inside else 0,
            is_small,
        )  # fmt: skip
        extents = [(int(blocks.address[n]), int(blocks.size_bytes[n]), n) for n in inside]
        layout.add(place, size, list(_pieces(address, size, extents)))
    return Before(
        sizes=np.array(layout.sizes, dtype=np.int64),
        streams=np.array(layout.streams, dtype=np.int64),
        as_it_lay=layout.finish(),
        packed=_packed(there, pools),
    )


def _packed(there: Int64Array, pools: Int64Array) -> Int64Array:
    """Allocates the blocks alone, in the order of their addresses."""
    ops, pool = [], 0
    for number in there.tolist():
        if pools[number] != pool:
            pool = int(pools[number])
            ops.append(-(POOL + 8 * pool))
        ops.append(number)
    return np.array([*ops, -POOL] if pool else ops, dtype=np.int64)


def _ranges(snapshot: Snapshot, replay: Replay, device: int) -> Iterator[tuple[int, int]]:
    """Yields the address and size of each segment before the first event, in the order of their
    addresses. Adjacent mappings of an expandable segment count as one.
    """
    lives, table = replay.segments, snapshot.segments
    first = np.flatnonzero(lives.birth == -1)
    first = first[np.argsort(lives.address[first])]
    is_expandable = bool(table.is_expandable[table.device == device].any())
    begin, size = 0, 0
    for address, length in zip(
        lives.address[first].tolist(), lives.size_bytes[first].tolist(), strict=True
    ):
        if is_expandable and size and begin + size == address:
            size += length
            continue
        if size:
            yield begin, size
        begin, size = address, length
    if size:
        yield begin, size


def _row_at(table: SegmentTable, device: int, address: int) -> int | None:
    ends = table.address + table.total_bytes
    (rows,) = np.nonzero((table.device == device) & (table.address <= address) & (address < ends))
    return int(rows[0]) if len(rows) else None


def _pieces(address: int, size: int, extents: Sequence[tuple[int, int, int]]) -> Iterator[_Piece]:
    """Divides a segment into blocks and holes; leaves out blocks that overlap another."""
    at, end = address, address + size
    for begin, length, number in extents:
        if begin < at or begin + length > end:
            continue
        if begin > at:
            yield _Piece(begin - at, None)
        yield _Piece(length, number)
        at = begin + length
    if at < end:
        yield _Piece(end - at, None)


class _Layout:
    """Builds the list of operations. Blocks that fill holes are numbered after the real ones."""

    def __init__(self, num_blocks: int) -> None:
        self.sizes: list[int] = []
        self.streams: list[int] = []
        self._num_blocks = num_blocks
        self._ops: list[int] = []
        self._frees: list[int] = []
        self._pool = 0

    def add(self, place: _Place, size: int, pieces: Sequence[_Piece]) -> None:
        if place.pool != self._pool:
            self._pool = place.pool
            self._ops.append(-(POOL + 8 * place.pool))
        if not place.is_small:
            whole = self._fill(size, place.stream)
            self._ops.append(-(_FREE + 8 * whole))
        for piece in pieces:
            if piece.block is not None:
                self._ops.append(piece.block)
                continue
            left = piece.size_bytes
            while left:
                # The allocator does not split off so small a rest in the large pool: it belongs
                # to the block before it.
                if not place.is_small and left <= SMALL_BYTES:
                    break
                part = min(left, SMALL_BYTES) if place.is_small else left
                self._frees.append(self._fill(part, place.stream))
                left -= part

    def finish(self) -> Int64Array:
        """Returns the operations, with the frees of the holes at the end."""
        count = self._num_blocks + len(self.sizes)
        if self._pool:
            self._ops.append(-POOL)
        ops = [
            count + (-op >> 3) if op < 0 and -op & 7 == _FREE else op
            for op in [*self._ops, *(-(_FREE + 8 * number) for number in self._frees)]
        ]
        return np.array(ops, dtype=np.int64)

    def _fill(self, size: int, stream: int) -> int:
        """Allocates a block that only fills space, and returns its number."""
        self.sizes.append(size)
        self.streams.append(stream)
        number = self._num_blocks + len(self.sizes) - 1
        self._ops.append(number)
        return number


# Marks the free of a filling block until the number of blocks is known; never written to a file.
_FREE = 7
