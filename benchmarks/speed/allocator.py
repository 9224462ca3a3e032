"""The rules of PyTorch's caching allocator, plainly: rounding, best fit, splitting, merging.

allocator = Allocator()
block = allocator.allocate(3 * MIB, stack=7)
allocator.free(block)
allocator.trace
"""

from array import array
from bisect import bisect_left, insort
from dataclasses import dataclass, field

MIB = 2**20
ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC, SEGMENT_FREE, SNAPSHOT = range(6)
ACTIONS = (
    "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "snapshot"
)  # fmt: skip

_FIRST_ADDRESS = 0x7F0000000000


@dataclass(slots=True)
class Block:
    """A range of a segment, live or free, and its neighbours in it."""

    address: int
    size: int
    segment: int
    requested: int = 0
    stack: int = -1
    is_live: bool = False
    before: "Block | None" = None
    after: "Block | None" = None


@dataclass(slots=True)
class Trace:
    """What the allocator did, as columns of equal length."""

    action: array = field(default_factory=lambda: array("b"))
    address: array = field(default_factory=lambda: array("q"))
    size: array = field(default_factory=lambda: array("q"))
    stack: array = field(default_factory=lambda: array("l"))

    def note(self, action: int, address: int, size: int, stack: int) -> None:
        """Adds an event."""
        self.action.append(action)
        self.address.append(address)
        self.size.append(size)
        self.stack.append(stack)


class Allocator:
    """The caching allocator of one device: `c10/cuda/CUDACachingAllocator.cpp`."""

    def __init__(self) -> None:
        self.trace = Trace()
        self.first_blocks: dict[int, Block] = {}  # of each segment
        self.segment_sizes: dict[int, int] = {}
        self._free: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
        self._blocks: dict[int, Block] = {}
        self._gaps: list[tuple[int, int]] = []  # what was given back, (size, address)
        self._next_segment = _FIRST_ADDRESS

    def allocate(self, requested: int, stack: int) -> Block:
        """The block that a request gets."""
        size = max(512, -(-requested // 512) * 512)
        is_small = size <= MIB
        free = self._free[is_small]
        place = bisect_left(free, (size, 0))
        if place < len(free):
            block = self._blocks[free.pop(place)[1]]
        else:
            block = self._add_segment(size, stack)
        rest = block.size - size
        if rest >= 512 if is_small else rest > MIB:
            self._split(block, size)
        block.is_live, block.requested, block.stack = True, requested, stack
        self.trace.note(ALLOC, block.address, requested, stack)
        return block

    def free(self, block: Block) -> None:
        """Takes a block back, and joins it with what is free beside it."""
        self.trace.note(FREE_REQUESTED, block.address, block.requested, block.stack)
        self.trace.note(FREE_COMPLETED, block.address, block.requested, block.stack)
        block.is_live, block.requested, block.stack = False, 0, -1
        if block.after is not None and not block.after.is_live:
            self._merge(block, block.after)
        if block.before is not None and not block.before.is_live:
            block = block.before
            self._forget(block)
            self._merge_kept(block, block.after)
        insort(self._free[self._is_small(block)], (block.size, block.address))

    def release(self) -> None:
        """Gives every segment back that is free as a whole: `torch.cuda.empty_cache()`."""
        for address, size in list(self.segment_sizes.items()):
            block = self.first_blocks[address]
            if block.is_live or block.size != size:
                continue
            self._forget(block)
            del self._blocks[address], self.first_blocks[address], self.segment_sizes[address]
            self._gaps.append((size, address))
            self.trace.note(SEGMENT_FREE, address, size, -1)

    def _add_segment(self, size: int, stack: int) -> Block:
        if size <= MIB:
            total = 2 * MIB
        elif size < 10 * MIB:
            total = 20 * MIB
        else:
            total = -(-size // (2 * MIB)) * 2 * MIB
        address = self._find_addresses(total)
        block = Block(address, total, address)
        self._blocks[address] = self.first_blocks[address] = block
        self.segment_sizes[address] = total
        self.trace.note(SEGMENT_ALLOC, address, total, stack)
        return block

    def _find_addresses(self, total: int) -> int:
        """The driver's part: addresses that were given back are given out again."""
        fitting = [gap for gap in self._gaps if gap[0] >= total]
        if not fitting:
            self._next_segment += total
            return self._next_segment - total
        size, address = min(fitting)
        self._gaps.remove((size, address))
        if size > total:
            self._gaps.append((size - total, address + total))
        return address

    def _split(self, block: Block, size: int) -> None:
        rest = Block(block.address + size, block.size - size, block.segment)
        rest.before, rest.after = block, block.after
        if block.after is not None:
            block.after.before = rest
        block.after, block.size = rest, size
        self._blocks[rest.address] = rest
        insort(self._free[self._is_small(rest)], (rest.size, rest.address))

    def _merge(self, block: Block, other: Block) -> None:
        self._forget(other)
        self._merge_kept(block, other)

    def _merge_kept(self, block: Block, other: Block | None) -> None:
        if other is None:
            return
        block.size += other.size
        block.after = other.after
        if other.after is not None:
            other.after.before = block
        del self._blocks[other.address]

    def _forget(self, block: Block) -> None:
        free = self._free[self._is_small(block)]
        del free[bisect_left(free, (block.size, block.address))]

    def _is_small(self, block: Block) -> bool:
        return self.segment_sizes[block.segment] == 2 * MIB
