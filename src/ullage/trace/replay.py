"""The life of every block of a snapshot: what a trace, which starts anywhere, says together with
the segments at its end.

The state before the first event is rebuilt backwards: a block that is there at the end and was not
allocated in the trace was there before it; so was one that is freed in the trace without having
been allocated in it. From there the trace is replayed by the allocator's rules (see csrc/replay.c),
which gives each block the size that it really got, and shows where a file contradicts itself.

    lives = replay(snapshot, device=0)
    lives.size_bytes[lives.is_live(event)]
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ullage.trace.before_trace import BlocksBefore, Ranges, lay_out_ranges
from ullage.trace.plain import load_library
from ullage.trace.rules import PAGE_BYTES, AllocatorSettings, read_settings, round_sizes
from ullage.trace.segment_lives import SegmentLives, find_segments
from ullage.trace.snapshot import Action, BlockState, EventTable, Int64Array, Snapshot, UInt32Array

BoolArray = NDArray[np.bool_]

_PROBLEMS = {
    1: "there is no memory left for its replay",
    2: "a block is allocated at {address:#x}, where there is no free range",
    3: "a block of {size} bytes is allocated at {address:#x}, where the free range is smaller",
    4: "a block is freed at {address:#x}, where none is live",
    5: "a segment is given back at {address:#x}, where there is no free one of {size} bytes",
    6: "a segment is added at {address:#x}, where there is one already",
    7: "a segment is given back at {address:#x}, amid a free range: too often to be followed",
    8: "it is of {size} bytes, at {address:#x}",
}


@dataclass(frozen=True, slots=True)
class Lives:
    """Every block of one device, in the order of their births; those from before come first.

    Attributes:
        address, size_bytes: of the block; the size with rounding.
        requested_bytes: what the program requested.
        birth: the event that allocated it; -1 where it was there before the first.
        death: the event that ended it; the number of events where it is there at the end.
        stack: of the allocation; 0 where it is not known.
        stream: the CUDA stream's handle; of a block from before the trace, that of its segment.
        is_exact: whether the size is; of a block from before that is gone at the end, and of those
            after a contradiction, it is the least that the rounding gives.
    """

    address: Int64Array
    size_bytes: Int64Array
    requested_bytes: Int64Array
    birth: Int64Array
    death: Int64Array
    stack: UInt32Array
    stream: Int64Array
    is_exact: BoolArray

    def __len__(self) -> int:
        return len(self.address)

    def is_live(self, event: int) -> BoolArray:
        """Which blocks are live right after an event; -1 is before the first."""
        return (self.birth <= event) & (event < self.death)


@dataclass(frozen=True, slots=True)
class Replay:
    """What a trace comes to.

    Attributes:
        num_events: of the trace.
        blocks: the life of every block.
        segments: the life of every reserved range; in an expandable segment each mapping is one.
        contradictions: where the file does not agree with itself, in words; empty if it does.
    """

    num_events: int
    blocks: Lives
    segments: SegmentLives
    contradictions: tuple[str, ...]


def replay(snapshot: Snapshot, device: int = 0) -> Replay:
    """Replays the trace of one device; without one, all blocks are there from -1 to 0."""
    events = snapshot.events_of(device)
    problems: list[str] = []
    lives = _match(snapshot, events, device, problems)
    segments = find_segments(snapshot, device, problems)
    ranges = _lay_out(snapshot, device, lives, segments, problems)
    sizes, num_done = _replay_sizes(snapshot, events, ranges, problems)
    blocks = _with_sizes(lives, sizes, num_done)
    problems += _compare_with_end(snapshot, blocks, len(events), device)
    return Replay(len(events), blocks, segments, tuple(problems))


def _match(snapshot: Snapshot, events: EventTable, device: int, problems: list[str]) -> Lives:
    """Pairs each allocation with the free that ends it; sizes are the requested ones."""
    is_here = np.isin(events.action, (Action.ALLOC, Action.FREE_COMPLETED))
    numbers = np.flatnonzero(is_here)
    order = numbers[np.argsort(events.address[numbers], kind="stable")]
    address, is_alloc = events.address[order], events.action[order] == Action.ALLOC
    same = np.append(address[1:] == address[:-1], False)
    ends = same & is_alloc & ~np.append(is_alloc[1:], True)
    begins_before = ~is_alloc & ~np.insert(ends[:-1], 0, False) if len(order) else is_alloc
    lost = is_alloc & same & np.append(is_alloc[1:], False)
    if lost.any():
        problems.append(f"{lost.sum()} blocks are allocated where the block before was never freed")
    birth = np.where(is_alloc, order, -1)[is_alloc | begins_before]
    follower = np.append(order[1:], len(events)) if len(order) else order
    death = np.where(is_alloc, np.where(ends | lost, follower, len(events)), order)
    death = death[is_alloc | begins_before]
    which = np.where(birth >= 0, birth, death)
    stayed = _blocks_that_stayed(snapshot, events, device)
    blocks = snapshot.blocks
    join = np.concatenate
    lives = Lives(
        address=join([blocks.address[stayed], events.address[which]]),
        size_bytes=join([blocks.size_bytes[stayed], events.size_bytes[which]]),
        requested_bytes=join([blocks.requested_bytes[stayed], events.size_bytes[which]]),
        birth=join([np.full(len(stayed), -1), birth]),
        death=join([np.full(len(stayed), len(events)), death]),
        stack=join([blocks.stack[stayed], np.where(birth >= 0, events.stack[which], 0)]).astype(
            np.uint32
        ),
        stream=join([snapshot.segments.stream[blocks.segment[stayed]], events.stream[which]]),
        is_exact=join([np.ones(len(stayed), bool), np.zeros(len(which), bool)]),
    )
    return _take(lives, np.argsort(lives.birth, kind="stable"))


def _blocks_that_stayed(snapshot: Snapshot, events: EventTable, device: int) -> Int64Array:
    blocks = snapshot.blocks
    is_live = np.isin(blocks.state, (BlockState.ACTIVE, BlockState.PENDING))
    is_live &= snapshot.segments.device[blocks.segment] == device
    numbers = np.flatnonzero(is_live)
    # The last event at an address says whether what is there came in the trace.
    is_event = np.isin(events.action, (Action.ALLOC, Action.FREE_COMPLETED))
    at = np.flatnonzero(is_event)[::-1]
    addresses, first = np.unique(events.address[at], return_index=True)
    allocated = addresses[events.action[at[first]] == Action.ALLOC]
    return numbers[~np.isin(blocks.address[numbers], allocated)]


def _take(lives: Lives, order: NDArray[Any]) -> Lives:
    return Lives(*(getattr(lives, name)[order] for name in Lives.__slots__))


def _replay_sizes(
    snapshot: Snapshot, events: EventTable, ranges: Ranges, problems: list[str]
) -> tuple[Int64Array, int]:
    """The size of the block of each event, and how many events could be replayed."""
    is_small = (events.size_bytes == PAGE_BYTES).astype(np.uint8)
    sizes, problem = np.zeros(len(events), dtype=np.int64), ctypes.c_int(0)
    columns = [
        np.ascontiguousarray(column)
        for column in (events.action, events.address, events.size_bytes, is_small)
    ]
    done = _replay_trace()(
        len(ranges[0]),
        *(column.ctypes.data for column in ranges),
        len(events),
        *(column.ctypes.data for column in columns),
        ctypes.byref(read_settings(snapshot.settings)),
        sizes.ctypes.data,
        ctypes.byref(problem),
    )
    if problem.value:
        text = _PROBLEMS[problem.value].format(
            address=int(events.address[done]), size=int(events.size_bytes[done])
        )
        problems.append(f"event {done}: {text}")
    return sizes, int(done)


@cache
def _replay_trace() -> Any:  # noqa: ANN401 - a foreign function
    function = load_library().replay_trace
    pointer, size = ctypes.c_void_p, ctypes.c_uint64
    function.restype = size
    function.argtypes = [
        size, *[pointer] * 5, size, *[pointer] * 4, ctypes.POINTER(AllocatorSettings), pointer,
        ctypes.POINTER(ctypes.c_int),
    ]  # fmt: skip
    return function


def _lay_out(
    snapshot: Snapshot, device: int, lives: Lives, segments: SegmentLives, problems: list[str]
) -> Ranges:
    before = np.flatnonzero(lives.birth == -1)
    before = before[np.argsort(lives.address[before])]
    rounded = round_sizes(lives.size_bytes[before], read_settings(snapshot.settings))
    blocks = BlocksBefore(
        address=lives.address[before],
        size_bytes=np.where(lives.is_exact[before], lives.size_bytes[before], rounded),
        death=lives.death[before],
        is_exact=lives.is_exact[before],
    )
    return lay_out_ranges(snapshot, device, blocks, segments, problems)


def _with_sizes(lives: Lives, sizes: Int64Array, num_done: int) -> Lives:
    event = np.where(lives.birth >= 0, lives.birth, lives.death)
    is_replayed = (event < num_done) & ~lives.is_exact
    num_bytes = sizes[np.minimum(event, len(sizes) - 1)] if len(sizes) else lives.size_bytes
    return Lives(
        address=lives.address,
        size_bytes=np.where(is_replayed, num_bytes, lives.size_bytes),
        requested_bytes=lives.requested_bytes,
        birth=lives.birth,
        death=lives.death,
        stack=lives.stack,
        stream=lives.stream,
        is_exact=lives.is_exact | (is_replayed & (lives.birth >= 0)),
    )


def _compare_with_end(snapshot: Snapshot, lives: Lives, num_events: int, device: int) -> list[str]:
    """Where the blocks at the end are not those that the trace leads to."""
    blocks = snapshot.blocks
    is_live = np.isin(blocks.state, (BlockState.ACTIVE, BlockState.PENDING))
    is_live &= snapshot.segments.device[blocks.segment] == device
    expected = dict(
        zip(blocks.address[is_live].tolist(), blocks.size_bytes[is_live].tolist(), strict=True)
    )
    at_end = lives.death == num_events
    got = dict(zip(lives.address[at_end].tolist(), lives.size_bytes[at_end].tolist(), strict=True))
    problems = []
    missing = [address for address in got if address not in expected]
    if missing:
        problems.append(
            f"{len(missing)} blocks that are allocated and never freed are not in the segments at "
            f"the end, such as that at {missing[0]:#x}"
        )
    other = [address for address in got if got[address] != expected.get(address, got[address])]
    if other:
        first = other[0]
        problems.append(
            f"{len(other)} blocks have another size at the end than the trace leads to, such as "
            f"that at {first:#x}: {expected[first]} bytes, by the trace {got[first]}"
        )
    return problems
