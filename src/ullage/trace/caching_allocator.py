"""PyTorch's caching allocator by its rules, without a device: what it reserves for requests.

    allocator = CachingAllocator(is_expandable=True)
    block = allocator.allocate(3 * MIB, stream=0)
    allocator.free(block)
    allocator.peak_reserved_bytes

Counts: best fit in the pools of a stream, segments, splitting, merging, a cache that is emptied;
expandable segments with their pages of 2 and 20 MiB. Ignores: private pools, limits of the device,
garbage collection. Source: c10/cuda/CUDACachingAllocator.cpp, torch 2.6 to 2.15; checked against
that very code in tests/phantom/test_whatif.py.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from ullage.units import MIB

_SMALL_BYTES = MIB
PAGE_BYTES = 2 * MIB
"""Of the driver; a segment of small blocks has one."""
_LARGE_SEGMENT_BYTES = 20 * MIB
_OWN_SEGMENT_BYTES = 10 * MIB
_MIN_BLOCK_BYTES = 512
# What a block that is never split may leave unused when it is reused.
_MAX_UNUSED_BYTES = 20 * MIB
_NO_LIMIT = 2**63 - 1


def segment_bytes(size_bytes: int) -> int:
    """What the allocator asks the driver for to serve a request, without expandable segments.

    Source: get_allocation_size in c10/cuda/CUDACachingAllocator.cpp.
    """
    if size_bytes <= _SMALL_BYTES:
        return PAGE_BYTES
    if size_bytes < _OWN_SEGMENT_BYTES:
        return _LARGE_SEGMENT_BYTES
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


class Block:
    """A part of a segment; of an expandable one it may be without memory yet."""

    __slots__ = ("address", "after", "before", "is_free", "is_mapped", "pool", "size_bytes")

    def __init__(
        self, address: int, size_bytes: int, pool: _Pool, *, is_mapped: bool = True
    ) -> None:
        self.address = address
        self.size_bytes = size_bytes
        self.pool = pool
        self.is_mapped = is_mapped
        self.is_free = True
        self.before: Block | None = None
        self.after: Block | None = None


class _Pool:
    def __init__(self, *, is_small: bool) -> None:
        self.is_small = is_small
        self.page_bytes = PAGE_BYTES if is_small else _LARGE_SEGMENT_BYTES
        self.order: list[tuple[int, int, int]] = []
        # Not by address: a replay that parts from its recording may have two blocks at one.
        self.by_id: dict[int, Block] = {}
        self.first: Block | None = None  # of an expandable segment

    def add(self, block: Block) -> None:
        """A free block."""
        insort(self.order, (block.size_bytes, block.address, id(block)))
        self.by_id[id(block)] = block

    def remove(self, block: Block) -> None:
        """A block is no longer free, or another one."""
        del self.order[bisect_left(self.order, (block.size_bytes, block.address, id(block)))]
        del self.by_id[id(block)]

    def best_fit(self, size: int) -> Block | None:
        """The smallest free block that is large enough."""
        place = bisect_left(self.order, (size,))
        return self.by_id[self.order[place][2]] if place < len(self.order) else None


class CachingAllocator:
    """The allocator of one device.

    Args:
        is_expandable: whether its segments are.
        max_split_bytes: blocks of this size or more are not split.
        addresses: where the segments lie, in the order of their allocation; without them, or beyond
            them, each lies above those before it, so that of blocks of a size the oldest segment's
            is taken, as from torch 2.13 on. Of expandable segments it does not matter.
    """

    def __init__(
        self,
        *,
        is_expandable: bool = False,
        max_split_bytes: int = _NO_LIMIT,
        addresses: Iterable[int] = (),
    ) -> None:
        self.reserved_bytes = 0
        self.peak_reserved_bytes = 0
        self._is_expandable = is_expandable
        self._max_split_bytes = max_split_bytes
        self._addresses = iter(addresses)
        self._next_address = 1 << 62
        self._pools: dict[tuple[int, bool], _Pool] = {}

    def allocate(self, size_bytes: int, stream: int) -> Block:
        """A block of a rounded size."""
        is_small = size_bytes <= _SMALL_BYTES
        key = stream, is_small
        pool = self._pools.get(key)
        if pool is None:
            pool = self._pools[key] = _Pool(is_small=is_small)
        block = self._find_free(pool, size_bytes)
        if block is not None:
            pool.remove(block)
        elif self._is_expandable:
            block = self._extend(pool, size_bytes)
        else:
            block = self._add_segment(pool, size_bytes)
        rest = block.size_bytes - size_bytes
        if self._is_split(pool, size_bytes, rest):
            pool.add(_split(block, size_bytes))
        block.is_free = False
        return block

    def free(self, block: Block) -> None:
        """A block is done with."""
        block.is_free = True
        pool = block.pool
        for other in (block.before, block.after):
            if other is not None and other.is_free and other.is_mapped:
                pool.remove(other)
        pool.add(_merge(block))

    def empty_cache(self) -> None:
        """Gives back free segments, or the free pages of expandable ones."""
        for pool in self._pools.values():
            for block in list(pool.by_id.values()):
                if self._is_expandable:
                    self._unmap(pool, block)
                elif block.before is None and block.after is None:
                    pool.remove(block)
                    self.reserved_bytes -= block.size_bytes

    def _find_free(self, pool: _Pool, size: int) -> Block | None:
        if self._is_expandable:
            return _best_of_expandable(pool, size)
        block = pool.best_fit(size)
        if block is None or pool.is_small:
            return block
        limit = self._max_split_bytes
        if size < limit <= block.size_bytes:
            return None
        is_wasteful = size >= limit and block.size_bytes >= size + _MAX_UNUSED_BYTES
        return None if is_wasteful else block

    def _is_split(self, pool: _Pool, size: int, rest: int) -> bool:
        if pool.is_small or self._is_expandable:
            return rest >= _MIN_BLOCK_BYTES
        return rest > _SMALL_BYTES and size < self._max_split_bytes

    def _reserve(self, size: int) -> None:
        self.reserved_bytes += size
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)

    def _add_segment(self, pool: _Pool, size: int) -> Block:
        length = segment_bytes(size)
        self._reserve(length)
        address = next(self._addresses, None)
        if address is None:
            address, self._next_address = self._next_address, self._next_address + length
        return Block(address, length, pool)

    def _extend(self, pool: _Pool, size: int) -> Block:
        """Maps pages behind, or between, those that an expandable segment has; a block of them that
        is large enough.
        """
        if pool.first is None:
            pool.first = Block(0, _NO_LIMIT, pool, is_mapped=False)
        block = _find_room(pool.first, size)
        if block.is_mapped:
            pool.remove(block)
        else:
            block = self._map(block, min(size, block.size_bytes))
        while block.size_bytes < size:
            following = block.after
            if following is None:
                raise AssertionError("what was found to have room has none")
            if following.is_mapped:
                pool.remove(following)
                _absorb(block, following)
            else:
                self._map(following, min(size - block.size_bytes, following.size_bytes))
                _absorb(block, following)
        if block.after is not None and block.after.is_free and block.after.is_mapped:
            pool.remove(block.after)
            _absorb(block, block.after)
        return block

    def _map(self, block: Block, size: int) -> Block:
        """Gives memory to the beginning of a block that has none, in whole pages."""
        page = block.pool.page_bytes
        length = min(-(-(block.address + size) // page) * page - block.address, block.size_bytes)
        if length < block.size_bytes:
            rest = _split(block, length)
            rest.is_mapped = False
        block.is_mapped = True
        self._reserve(length)
        return block

    def _unmap(self, pool: _Pool, block: Block) -> None:
        """Gives back the whole pages of a free block."""
        page = pool.page_bytes
        begin = -(-block.address // page) * page
        end = (block.address + block.size_bytes) // page * page
        if begin >= end:
            return
        pool.remove(block)
        self.reserved_bytes -= end - begin
        middle = block
        if begin > block.address:
            middle = _split(block, begin - block.address)
            pool.add(block)
        if end < middle.address + middle.size_bytes:
            pool.add(_split(middle, end - middle.address))
        middle.is_mapped = False
        for other in (middle.after, middle.before):
            if other is not None and not other.is_mapped:
                first, second = sorted((middle, other), key=lambda part: part.address)
                _absorb(first, second)
                middle = first


def _best_of_expandable(pool: _Pool, size: int) -> Block | None:
    """The best fit where the size that a block could grow to counts: of those that could grow more
    a later one in the order is taken.
    """
    best = pool.best_fit(size)
    if best is None:
        return None
    place = bisect_left(pool.order, (size,))
    for number in range(place + 1, len(pool.order)):
        following = pool.by_id[pool.order[number][2]]
        if _room_of(following) >= _room_of(best):
            break
        best = following
    return best


def _room_of(block: Block) -> int:
    after = block.after
    return block.size_bytes + (after.size_bytes if after and not after.is_mapped else 0)


def _find_room(block: Block | None, size: int) -> Block:
    """Where the lowest addresses are that can have memory and are not in use: a free block, or one
    without memory.
    """
    while block is not None:
        if not block.is_mapped:
            start = block.before if block.before is not None and block.before.is_free else block
            if _has_room(start, size):
                return start
        block = block.after
    raise AssertionError("an expandable segment has an end")


def _has_room(block: Block, size: int) -> bool:
    """Whether a block and what follows it are free for so many bytes."""
    room, part = 0, block
    while part.is_free and room < size:
        room += part.size_bytes
        if part.after is None:
            break
        part = part.after
    return room >= size


def _split(block: Block, size: int) -> Block:
    """Cuts a block; the second part, which is free."""
    rest = Block(
        block.address + size, block.size_bytes - size, block.pool, is_mapped=block.is_mapped
    )
    rest.before, rest.after = block, block.after
    if rest.after is not None:
        rest.after.before = rest
    block.after, block.size_bytes = rest, size
    return rest


def _absorb(first: Block, second: Block) -> None:
    """Makes one of two neighbours."""
    first.size_bytes += second.size_bytes
    first.after = second.after
    if first.after is not None:
        first.after.before = first


def _merge(block: Block) -> Block:
    after, before = block.after, block.before
    if after is not None and after.is_free and after.is_mapped:
        _absorb(block, after)
    if before is not None and before.is_free and before.is_mapped:
        _absorb(before, block)
        return before
    return block
