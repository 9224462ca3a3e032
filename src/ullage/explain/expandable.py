"""What a program would have reserved with expandable segments: its requests again, by the rules of
PyTorch's allocator.

measure_expandable(snapshot, replay, device)        bytes at the peak, or None

A replay needs the requests from the first on. It counts only where a replay under the recorded
settings comes to what was recorded, to the byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from ullage.programs.allocator_replay import RETRY
from ullage.trace.before_trace import max_split_bytes
from ullage.trace.caching_allocator import Block, CachingAllocator
from ullage.trace.emptied import find_emptied, held_before
from ullage.trace.replay import Replay, round_sizes
from ullage.trace.snapshot import Int64Array, Snapshot

_ALLOCATE, _FREE, _EMPTY, _RETRY = range(4)


def measure_expandable(snapshot: Snapshot, replay: Replay, device: int) -> int | None:
    """The most that the trace of a device would have reserved with expandable segments.

    None where that cannot be replayed: without a trace, where it begins with something reserved
    (the end of a longer one), contradicts itself or has private pools, where segments are
    expandable already, and where the recorded settings do not come to what was recorded.
    """
    settings, segments = snapshot.settings, replay.segments
    is_whole = replay.num_events > 0 and not (segments.birth == -1).any()
    is_plain = len(snapshot.pools) < 2 and settings.get("expandable_segments") is not True
    if not is_whole or not is_plain or replay.contradictions or not len(segments):
        return None
    operations = list(_operations(snapshot, replay, device))
    asked = np.maximum(replay.blocks.requested_bytes, 1)
    streams = replay.blocks.stream.tolist()
    reserved = held_before(replay.segments, replay.num_events)
    # Of free blocks of a size torch takes the oldest segment's, up to 2.12 the lowest.
    for addresses in ((), segments.address[np.argsort(segments.birth, kind="stable")].tolist()):
        recorded = CachingAllocator(max_split_bytes=max_split_bytes(settings), addresses=addresses)
        _play(recorded, operations, round_sizes(asked, settings), streams)
        if (recorded.peak_reserved_bytes, recorded.reserved_bytes) == (
            reserved.max(),
            reserved[-1],
        ):
            break
    else:
        return None
    expandable = CachingAllocator(is_expandable=True)
    # The allocator gave its cache back where memory was short; with less of it, it need not.
    without_retries = (operation for operation in operations if operation[0] != _RETRY)
    _play(expandable, without_retries, round_sizes(asked, {}), streams)
    return expandable.peak_reserved_bytes


def _operations(snapshot: Snapshot, replay: Replay, device: int) -> Iterator[tuple[int, int]]:
    """(kind, number of a block) in the order of the events."""
    blocks, events = replay.blocks, snapshot.events_of(device)
    emptied = find_emptied(snapshot, replay, events)
    born = np.flatnonzero(blocks.birth >= 0)
    dies = np.flatnonzero(blocks.death < replay.num_events)
    retries = np.array([kind == RETRY for kind in emptied.values()], dtype=np.int64)
    event = np.concatenate([blocks.birth[born], blocks.death[dies], np.array([*emptied], np.int64)])
    kind = np.repeat([_ALLOCATE, _FREE, _EMPTY], [len(born), len(dies), len(emptied)])
    kind[len(kind) - len(emptied) :] += retries
    number = np.concatenate([born, dies, np.zeros(len(emptied), np.int64)])
    order = np.argsort(event, kind="stable")
    return zip(kind[order].tolist(), number[order].tolist(), strict=True)


def _play(
    allocator: CachingAllocator,
    operations: Iterable[tuple[int, int]],
    sizes: Int64Array,
    streams: list[int],
) -> None:
    blocks: dict[int, Block] = {}
    size_of = sizes.tolist()
    for kind, number in operations:
        if kind == _ALLOCATE:
            blocks[number] = allocator.allocate(size_of[number], streams[number])
        elif kind == _FREE:
            allocator.free(blocks.pop(number))
        else:
            allocator.empty_cache()
