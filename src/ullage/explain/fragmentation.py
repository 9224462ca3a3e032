"""Memory that is reserved and not allocated: how it lies, which blocks keep it from being given
back, and what a request would find.

Free memory inside a segment is of use only to a request that fits into one of its holes; a segment
goes back to the driver only when no block is left in it. So the price of fragmentation is in bytes,
and it is paid for by few blocks, which have owners.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from ullage.ground.protocol.plain import As, Mark, figure
from ullage.log.blocks import BoolArray
from ullage.log.replay import Replay
from ullage.log.rules import make_settings, round_sizes
from ullage.log.snapshot import Int64Array, Snapshot


@dataclass(frozen=True, slots=True)
class Pinned:
    """A segment that is kept by fewer bytes than it has free.

    Attributes:
        address, size_bytes: of the segment.
        live_bytes: of the blocks in it.
        largest_free_bytes: the largest hole.
        blocks: numbers of its blocks in `Replay.blocks`, the largest first.
    """

    address: int
    size_bytes: int
    live_bytes: int
    largest_free_bytes: int
    blocks: tuple[int, ...]

    @property
    def free_bytes(self) -> int:
        """The bytes that would be given back if the blocks were not there."""
        return self.size_bytes - self.live_bytes


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """The layout of a device's reserved memory after an event.

    Attributes:
        reserved_bytes, allocated_bytes: of all segments and live blocks.
        requested_bytes: what was asked for of the live blocks.
        empty_bytes: of segments without any live block: the cache can give these back.
        hole_bytes: free inside segments that hold live blocks.
        private_free_bytes: free in segments of private pools (CUDA graphs, MemPool), which nothing
            else can use; the four sum to the reserved bytes.
        private_bytes: of all segments of private pools.
        holes: sizes of the holes, largest first; those of empty segments are among them.
        pinned: the segments with holes, that with the most free bytes first.
    """

    event: int
    reserved_bytes: int
    allocated_bytes: Annotated[int, Mark.NO_KEY]
    requested_bytes: int
    empty_bytes: Annotated[int, As("cache_bytes")]
    hole_bytes: int
    private_free_bytes: int
    private_bytes: int
    holes: Annotated[Int64Array, Mark.NO_KEY]
    pinned: Annotated[tuple[Pinned, ...], Mark.NO_KEY]

    @figure
    def rounding_bytes(self) -> int:
        """By how much the blocks are larger than the requests."""
        return self.allocated_bytes - self.requested_bytes

    @figure
    def largest_free_bytes(self) -> int:
        """The largest request that would find room without new memory."""
        return int(self.holes[0]) if len(self.holes) else 0

    def room_for(self, num_bytes: int) -> int:
        """How many requests of a size would find room in the holes as they lie."""
        rounded = round_sizes(np.array([num_bytes]), make_settings())
        return int((self.holes // rounded).sum())


def find_private(snapshot: Snapshot, replay: Replay, device: int) -> BoolArray:
    """(num_segments,) which ranges of `Replay.segments` belong to a private pool."""
    table, events, lives = snapshot.segments, snapshot.events_of(device), replay.segments
    here = np.flatnonzero(table.device == device)
    here = here[np.argsort(table.address[here])]
    place = np.searchsorted(table.address[here], lives.address, side="right") - 1
    at_end = np.append(table.pool[here], 0)[place]
    came = np.append(events.pool, 0)[lives.birth] if len(events) else np.zeros(len(lives), int)
    pool = np.where(lives.death < replay.num_events, 0, at_end)
    pool = np.where((lives.birth >= 0) & (came > 0), came, pool)
    is_private = [number > 0 and pair != (0, 0) for number, pair in enumerate(snapshot.pools)]
    return np.array(is_private, dtype=np.bool_)[pool]


def find_fragmentation(
    replay: Replay, event: int, private: BoolArray | None = None
) -> Fragmentation:
    """How the reserved memory lay right after an event; -1 is before the first. `private` tells
    the segments of private pools (see `find_private`).
    """
    there = (replay.segments.birth <= event) & (event < replay.segments.death)
    order = np.flatnonzero(there)[np.argsort(replay.segments.address[there])]
    begins, sizes = replay.segments.address[order], replay.segments.size_bytes[order]
    is_private = np.zeros(len(order), bool) if private is None else private[order]
    numbers = np.flatnonzero(replay.blocks.is_live(event))
    numbers = numbers[np.argsort(replay.blocks.address[numbers])]
    addresses, lengths = replay.blocks.address[numbers], replay.blocks.size_bytes[numbers]
    firsts = _join_spanned(begins, sizes, addresses, lengths)
    begins, is_private = begins[firsts], is_private[firsts]
    sizes = np.add.reduceat(sizes, firsts) if len(firsts) else sizes
    owner = np.searchsorted(begins, addresses, side="right") - 1
    live = np.zeros(len(begins), dtype=np.int64)
    np.add.at(live, owner[owner >= 0], lengths[owner >= 0])
    holes, hole_owner = _find_holes(begins, sizes, addresses, lengths, owner)
    largest = np.zeros(len(begins), dtype=np.int64)
    np.maximum.at(largest, hole_owner, holes)
    ranked = numbers[np.lexsort((-lengths, owner))]  # by owner, those of each the largest first
    cuts = np.searchsorted(owner, np.arange(len(begins) + 1))
    pinned = [
        Pinned(
            address=int(begins[i]),
            size_bytes=int(sizes[i]),
            live_bytes=int(live[i]),
            largest_free_bytes=int(largest[i]),
            blocks=tuple(ranked[cuts[i] : cuts[i + 1]].tolist()),
        )
        for i in np.flatnonzero((live > 0) & (live < sizes) & ~is_private)
    ]
    return Fragmentation(
        event=event,
        reserved_bytes=int(sizes.sum()),
        allocated_bytes=int(lengths.sum()),
        requested_bytes=int(replay.blocks.requested_bytes[numbers].sum()),
        empty_bytes=int(sizes[(live == 0) & ~is_private].sum()),
        hole_bytes=int((sizes - live)[(live > 0) & ~is_private].sum()),
        private_free_bytes=int((sizes - live)[is_private].sum()),
        private_bytes=int(sizes[is_private].sum()),
        holes=np.sort(holes[~is_private[hole_owner]])[::-1],
        pinned=tuple(sorted(pinned, key=lambda segment: -segment.free_bytes)),
    )


def _join_spanned(
    begins: Int64Array, sizes: Int64Array, addresses: Int64Array, lengths: Int64Array
) -> Int64Array:
    """The first of each group of ranges that blocks hold together: in an expandable segment a block
    may reach over several mappings.
    """
    if not len(begins):
        return np.empty(0, dtype=np.int64)
    first = np.maximum(np.searchsorted(begins, addresses, side="right") - 1, 0)
    last = np.searchsorted(begins, addresses + lengths - 1, side="right") - 1
    depth = np.zeros(len(begins) + 1, dtype=np.int64)
    spans = last > first
    np.add.at(depth, first[spans] + 1, 1)
    np.subtract.at(depth, last[spans] + 1, 1)
    is_adjacent = np.append(False, begins[1:] == (begins + sizes)[:-1])
    return np.flatnonzero(~((np.cumsum(depth)[:-1] > 0) & is_adjacent))


def _find_holes(
    begins: Int64Array,
    sizes: Int64Array,
    addresses: Int64Array,
    lengths: Int64Array,
    owner: Int64Array,
) -> tuple[Int64Array, Int64Array]:
    """The sizes of the free ranges, and the segment of each.

    A free range begins where a segment begins or a block ends, and goes on to the next block of the
    segment or to its end.
    """
    inside = owner >= 0
    starts = np.concatenate([begins, (addresses + lengths)[inside]])
    segment = np.concatenate([np.arange(len(begins)), owner[inside]])
    # The next block at or after the start, if it is in the same segment.
    place = np.searchsorted(addresses, starts, side="left")
    next_block = np.append(addresses, np.iinfo(np.int64).max)[place]
    stops = np.minimum(next_block, (begins + sizes)[segment]) if len(begins) else starts
    gaps = stops - starts
    return gaps[gaps > 0], segment[gaps > 0]
