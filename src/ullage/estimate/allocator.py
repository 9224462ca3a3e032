"""What PyTorch's caching allocator reserves for a played log: segments, blocks, splits and merges.

The rules are those of c10/cuda/CUDACachingAllocator.cpp with its default settings: best fit in one
of two pools, a new segment where nothing fits, the rest of a block split off where it is large
enough, free neighbours merged. Nothing is given back to the driver.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from typing import Final, TypeAlias

__all__ = ["Allocator", "Block"]

_SMALL: Final = 2**20  # requests up to this size share small segments
_SMALL_SEGMENT: Final = 2 * 2**20
_LARGE_SEGMENT: Final = 20 * 2**20
_OWN_SEGMENT: Final = 10 * 2**20  # requests from this size on get a segment of their own
_GRANULE: Final = 2 * 2**20
_LEAST: Final = 512


# Free blocks by size, then address: the first that is large enough is the best fit.
Pool: TypeAlias = "list[tuple[int, int, Block]]"


class Block:
    """A piece of a segment.

    Attributes:
        address: of its first byte; segments follow each other.
        size: in bytes.
        pool: where it is kept while nobody has it.
        is_free: nobody has it.
        before, after: its neighbours in the segment.
    """

    __slots__ = ("address", "after", "before", "is_free", "pool", "size")

    def __init__(self, address: int, size: int, pool: Pool) -> None:
        self.address = address
        self.size = size
        self.pool = pool
        self.is_free = False
        self.before: Block | None = None
        self.after: Block | None = None


class Allocator:
    """The caching allocator. What was allocated on one stream is of no use to another.

    Attributes:
        allocated_bytes, reserved_bytes: now.
        peak_allocated_bytes: blocks as they were split, so up to 1 MiB above the request each.
    """

    def __init__(self) -> None:
        self.allocated_bytes = 0
        self.reserved_bytes = 0
        self.peak_allocated_bytes = 0
        self._pools: dict[tuple[int, bool], Pool] = defaultdict(list)

    def allocate(self, size: int, stream: int = 0) -> Block:
        """A block for a request, whose size is rounded to 512 bytes already."""
        is_small = size <= _SMALL
        pool = self._pools[stream, is_small]
        place = bisect_left(pool, (size,))
        if place < len(pool):
            block = pool.pop(place)[2]
            block.is_free = False
        else:
            block = self._reserve(size, pool)
        rest = block.size - size
        if rest >= _LEAST if is_small else rest > _SMALL:
            self._split(block, size)
        self.allocated_bytes += block.size
        if self.allocated_bytes > self.peak_allocated_bytes:
            self.peak_allocated_bytes = self.allocated_bytes
        return block

    def free(self, block: Block) -> None:
        """Gives a block back to its pool, as one with its free neighbours."""
        self.allocated_bytes -= block.size
        pool = block.pool
        before, after = block.before, block.after
        if after is not None and after.is_free:
            del pool[bisect_left(pool, (after.size, after.address))]
            _join(block, after)
        if before is not None and before.is_free:
            del pool[bisect_left(pool, (before.size, before.address))]
            _join(before, block)
            block = before
        block.is_free = True
        insort(pool, (block.size, block.address, block))

    def _reserve(self, size: int, pool: Pool) -> Block:
        if size <= _SMALL:
            length = _SMALL_SEGMENT
        elif size < _OWN_SEGMENT:
            length = _LARGE_SEGMENT
        else:
            length = -(-size // _GRANULE) * _GRANULE
        block = Block(self.reserved_bytes, length, pool)
        self.reserved_bytes += length
        return block

    def _split(self, block: Block, size: int) -> None:
        rest = Block(block.address + size, block.size - size, block.pool)
        rest.before, rest.after = block, block.after
        if block.after is not None:
            block.after.before = rest
        block.after = rest
        block.size = size
        rest.is_free = True
        insort(block.pool, (rest.size, rest.address, rest))


def _join(first: Block, second: Block) -> None:
    first.size += second.size
    first.after = second.after
    if second.after is not None:
        second.after.before = first
