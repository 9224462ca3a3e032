"""Replays a recording's blocks through the rules of PyTorch's allocator up to 2.12, from the
segments and blocks that were there before its first event, at the addresses that they had.

    replay_snapshot(read_snapshot(path), 0, Platform.LINUX)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.accuracy.address_policy import POLICIES, Addresses
from ullage.ground.programs.allocator_replay import DROP_POOL, EMPTY_CACHE, POOL, RETRY
from ullage.ground.protocol.run import Platform
from ullage.ground.units import MIB
from ullage.log.replay import Replay, replay
from ullage.log.requests import find_requests
from ullage.log.rules import make_settings, round_sizes, segment_bytes
from ullage.log.snapshot import Snapshot

_Key = tuple[int, int, bool]  # stream, private pool, whether blocks are small
_LEAST_BYTES = 512


@dataclass(frozen=True, slots=True)
class Replayed:
    """How many segments there are at the end, as recorded and replayed; and how many of the blocks
    that the recording gives out lie in the segment, and at the place in it, that they had.
    """

    num_recorded: int
    num_segments: int
    has_same_segments: bool
    num_blocks: int
    num_in_place: int


@dataclass(slots=True)
class Block:
    """A piece of a segment, in use or free; `before` and `after` are its neighbours' addresses."""

    size: int
    key: _Key
    segment: int
    is_free: bool
    before: int | None = None
    after: int | None = None


class Allocator:
    """Best fit by size, then address.

    Attributes:
        blocks: by address.
        new_segments: the address of each segment that was taken from the driver.
        peak_bytes: the most that all segments had.
    """

    def __init__(self, addresses: Addresses) -> None:
        self._addresses = addresses
        self.blocks: dict[int, Block] = {}  # by address
        self._free: dict[_Key, set[tuple[int, int]]] = {}
        self._segments: dict[int, int] = {}
        self.new_segments: list[int] = []
        self.peak_bytes = 0

    def segment_of(self, address: int) -> int:
        """The start of the segment that a block is in."""
        return self.blocks[address].segment

    @property
    def segments(self) -> list[int]:
        """The bytes of each, in order."""
        return sorted(self._segments.values())

    def place(self, address: int, size: int, key: _Key, extents: list[tuple[int, int]]) -> None:
        """A segment that is there from the start, with these blocks in use."""
        self._segments[address] = size
        pieces, at = [], address
        for start, length in [*extents, (address + size, 0)]:
            if start > at:
                pieces.append((at, start - at, True))
            if length:
                pieces.append((start, length, False))
            at = start + length
        before = None
        for start, length, is_free in pieces:
            self.blocks[start] = Block(length, key, address, is_free, before)
            if before is not None:
                self.blocks[before].after = start
            if is_free:
                self._free.setdefault(key, set()).add((length, start))
            before = start

    def allocate(self, size: int, stream: int, pool: int) -> int:
        """The address of a block of so many bytes."""
        key = (stream, pool, size <= MIB)
        fitting = [block for block in self._free.setdefault(key, set()) if block[0] >= size]
        if fitting:
            found = min(fitting)
            self._free[key].remove(found)
            address = found[1]
            self.blocks[address].is_free = False
        else:
            length = segment_bytes(size)
            address = self._addresses.take(length)
            self._segments[address] = length
            self.blocks[address] = Block(length, key, address, is_free=False)
            self.new_segments.append(address)
            self.peak_bytes = max(self.peak_bytes, sum(self._segments.values()))
        self._split(address, size)
        return address

    def _split(self, address: int, size: int) -> None:
        block = self.blocks[address]
        rest = block.size - size
        if rest < _LEAST_BYTES if block.key[2] else rest <= MIB:
            return
        place = address + size
        self.blocks[place] = Block(
            rest, block.key, block.segment, is_free=True, before=address, after=block.after
        )
        if block.after is not None:
            self.blocks[block.after].before = place
        block.size, block.after = size, place
        self._free[block.key].add((rest, place))

    def release(self, address: int) -> None:
        """Frees a block, which joins its free neighbours."""
        block = self.blocks[address]
        if block.after is not None and self.blocks[block.after].is_free:
            self._join(address, block.after)
        if block.before is not None and self.blocks[block.before].is_free:
            address = block.before
            self._free[block.key].remove((self.blocks[address].size, address))
            self._join(address, self.blocks[address].after or 0)
            block = self.blocks[address]
        block.is_free = True
        self._free.setdefault(block.key, set()).add((block.size, address))

    def _join(self, first: int, second: int) -> None:
        block, gone = self.blocks[first], self.blocks.pop(second)
        self._free[block.key].discard((gone.size, second))
        block.size += gone.size
        block.after = gone.after
        if block.after is not None:
            self.blocks[block.after].before = first

    def empty_cache(self) -> None:
        """Gives back the segments without a block in use."""
        for address, size in [*self._segments.items()]:
            block = self.blocks[address]
            if block.is_free and block.size == size:
                self._free[block.key].remove((size, address))
                del self.blocks[address], self._segments[address]
                self._addresses.give_back(address, size)


def replay_snapshot(snapshot: Snapshot, device: int, platform: Platform) -> Replayed:
    """What the requests of a device come to with addresses in the order of a system."""
    lives = replay(snapshot, device)
    requests = find_requests(snapshot, lives, device)
    first = np.flatnonzero(lives.segments.birth == -1)
    segments = [(int(lives.segments.address[n]), int(lives.segments.size_bytes[n])) for n in first]
    allocator = Allocator(POLICIES[platform](segments))
    where = _place(snapshot, lives, allocator, segments, requests.streams.tolist())
    recorded_starts = _in_order_of_birth(lives)
    own_to_recorded: dict[int, int] = {}
    num_in_place = num_blocks = 0
    sizes = round_sizes(requests.sizes, make_settings()).tolist()
    streams, count, pool = requests.streams.tolist(), len(sizes), 0
    for op in requests.ops.tolist():
        if op >= count:
            allocator.release(where[op - count])
        elif op >= 0:
            where[op] = allocator.allocate(sizes[op], streams[op], pool)
            start = allocator.segment_of(where[op])
            if start == where[op] and start in allocator.new_segments[-1:]:
                own_to_recorded[start] = recorded_starts[len(allocator.new_segments) - 1]
            num_blocks += 1
            place = where[op] - start + own_to_recorded.get(start, start)
            num_in_place += place == int(lives.blocks.address[op])
        elif -op & 7 in (EMPTY_CACHE, RETRY, DROP_POOL):
            allocator.empty_cache()
        elif -op & 7 == POOL:
            pool = -op >> 3
    table = snapshot.segments
    recorded = sorted(table.total_bytes[table.device == device].tolist())
    replayed = allocator.segments
    return Replayed(len(recorded), len(replayed), recorded == replayed, num_blocks, num_in_place)


def _in_order_of_birth(lives: Replay) -> list[int]:
    """The addresses of the segments that come after the first event; 0 where there is none."""
    births = lives.segments.birth
    new = np.flatnonzero(births >= 0)
    new = new[np.argsort(births[new], kind="stable")]
    return [*lives.segments.address[new].tolist(), *([0] * 10_000)]


def _place(
    snapshot: Snapshot,
    lives: Replay,
    allocator: Allocator,
    segments: list[tuple[int, int]],
    streams: list[int],
) -> dict[int, int]:
    """Puts what was there before the first event where it was; the addresses of its blocks."""
    blocks = lives.blocks
    there = np.flatnonzero(blocks.birth == -1)
    there = there[np.argsort(blocks.address[there])]
    starts = blocks.address[there]
    table = snapshot.segments
    large = dict(zip(table.address.tolist(), table.is_large.tolist(), strict=True))
    where = {}
    for address, size in segments:
        low, high = np.searchsorted(starts, [address, address + size]).tolist()
        inside = there[low:high].tolist()
        is_small = not large.get(address, size != 2 * MIB)
        key = (streams[inside[0]] if inside else 0, 0, is_small)
        extents = [(int(blocks.address[n]), int(blocks.size_bytes[n])) for n in inside]
        allocator.place(address, size, key, extents)
        where.update({n: int(blocks.address[n]) for n in inside})
    return where
