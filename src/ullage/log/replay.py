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
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ullage.log.before_trace import BlocksBefore, Ranges, lay_out_ranges
from ullage.log.blocks import Blocks, pair_events
from ullage.log.plain import load_library
from ullage.log.rules import PAGE_BYTES, AllocatorSettings, read_settings, round_sizes
from ullage.log.segment_lives import SegmentLives, find_segments
from ullage.log.snapshot import Action, BlockState, EventTable, Int64Array, Snapshot

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
class Replay:
    """The result of replaying a trace.

    Attributes:
        blocks: the life of every block.
        segments: the life of every reserved range; in an expandable segment each mapping is one.
        contradictions: where the file does not agree with itself, in words; empty if it does.
    """

    blocks: Blocks
    segments: SegmentLives
    contradictions: tuple[str, ...]

    @property
    def num_events(self) -> int:
        """The number of events of the trace."""
        return self.blocks.num_events


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
    return Replay(blocks, segments, tuple(problems))


def _match(snapshot: Snapshot, events: EventTable, device: int, problems: list[str]) -> Blocks:
    """Pairs each allocation with the free that ends it; sizes are the requested ones."""
    rows = np.flatnonzero(np.isin(events.action, (Action.ALLOC, Action.FREE_COMPLETED)))
    is_birth = events.action[rows] == Action.ALLOC
    birth, death, num_lost = pair_events(events.address[rows], is_birth, rows, len(events))
    if num_lost:
        problems.append(f"{num_lost} blocks are allocated where the block before was never freed")
    which = np.where(birth >= 0, birth, death)
    stayed = _blocks_that_stayed(snapshot, events, device)
    blocks, num = snapshot.blocks, len(stayed)
    birth = np.append(np.full(num, -1), birth)
    order = np.argsort(birth, kind="stable")

    def column(of_stayed: NDArray[Any], of_events: NDArray[Any]) -> NDArray[Any]:
        return np.append(of_stayed, of_events)[order]

    stack = np.where(birth[num:] >= 0, events.stack[which], np.uint32(0))
    return Blocks(
        address=column(blocks.address[stayed], events.address[which]),
        size_bytes=column(blocks.size_bytes[stayed], events.size_bytes[which]),
        requested_bytes=column(blocks.requested_bytes[stayed], events.size_bytes[which]),
        birth=birth[order],
        death=column(np.full(num, len(events)), death),
        stack=column(blocks.stack[stayed], stack).astype(np.uint32),
        stream=column(snapshot.segments.stream[blocks.segment[stayed]], events.stream[which]),
        is_exact=order < num,
        device=np.full(len(order), device),
        num_events=len(events),
    )


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
    snapshot: Snapshot, device: int, lives: Blocks, segments: SegmentLives, problems: list[str]
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


def _with_sizes(lives: Blocks, sizes: Int64Array, num_done: int) -> Blocks:
    event = np.where(lives.birth >= 0, lives.birth, lives.death)
    is_replayed = (event < num_done) & ~lives.is_exact
    num_bytes = sizes[np.minimum(event, len(sizes) - 1)] if len(sizes) else lives.size_bytes
    return replace(
        lives,
        size_bytes=np.where(is_replayed, num_bytes, lives.size_bytes),
        is_exact=lives.is_exact | (is_replayed & (lives.birth >= 0)),
    )


def _compare_with_end(snapshot: Snapshot, lives: Blocks, num_events: int, device: int) -> list[str]:
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
