"""The requests that a snapshot's program made to the allocator, as a sequence that can be replayed.

They are in the order of the events: each allocation with its requested size, each free where it was
completed, torch.cuda.empty_cache() where segments were released, and failed requests. The memory
that was allocated before the first event can be rebuilt in two ways:

    as it lay     each segment with its holes: the state under the recorded settings
    packed        in the order of addresses without holes: a possible state under any settings

The first is for the check that a replay reproduces the recording. All settings that are compared
with each other start from the second.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ullage.ground.programs.allocator_replay import ATTEMPT, DROP_POOL, EMPTY_CACHE, POOL, RETRY
from ullage.ground.protocol.run import Platform
from ullage.log.before_requests import lay_out
from ullage.log.blocks import held_before
from ullage.log.replay import Replay
from ullage.log.rules import AllocatorOutcome, AllocatorSettings, play_requests
from ullage.log.snapshot import Action, EventTable, Int64Array, Snapshot

# Where a program, or the allocator for it, gave the cache back.

_ENDS = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)
_COMES = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP, Action.OOM)


def find_emptied(snapshot: Snapshot, replay: Replay, events: EventTable) -> Mapping[int, int]:
    """The action at the first event of each run of segments that go back: EMPTY_CACHE, RETRY, or
    DROP_POOL of the private pool that they were in, where events name pools.
    """
    is_free = np.isin(events.action, _ENDS)
    firsts = (
        np.flatnonzero(is_free & ~np.insert(is_free[:-1], 0, False))
        if len(is_free)
        else is_free[:0]
    )
    ends = np.append(np.flatnonzero(~is_free), len(events))
    reserved = held_before(replay.segments, replay.num_events)
    kinds = {}
    for first in firsts.tolist():
        after = int(ends[np.searchsorted(ends, first)])
        pool = int(events.pool[first])
        kinds[first] = DROP_POOL + 8 * pool if pool else EMPTY_CACHE
        if after < len(events) and events.action[after] in _COMES:
            would_be = reserved[first] + events.size_bytes[after]
            is_short = events.action[after] == Action.OOM or would_be > reserved.max()
            if is_short and _is_one_call(snapshot, events, first, after):
                kinds[first] = RETRY
    return kinds


def _is_one_call(snapshot: Snapshot, events: EventTable, first: int, after: int) -> bool:
    """True if the segments from `first` on may have gone back to make room for event `after`.

    The allocator gives its cache back when the device has no room for a segment; then they have the
    stack of the request. Those of torch.cuda.empty_cache() have its stack, or, where only the
    stacks of allocations are recorded, those that they were allocated with.
    """
    stacks = {tuple(snapshot.stacks.of(int(stack))) for stack in set(events.stack[first:after])}
    return stacks <= {(), tuple(snapshot.stacks.of(int(events.stack[after])))}


@dataclass(frozen=True, slots=True)
class Requests:
    """A sequence of requests; see ground/programs/allocator_replay.py for the operations.

    Attributes:
        sizes: the requested bytes of each block.
        streams: the number of each block's stream; 0 is the default stream.
        ops: the operations of the events.
        event: the event of each operation.
        as_it_lay, packed: the operations before these; both are empty if the trace is whole.
        num_emptied: how often the program released the cache.
        num_retries: how often the allocator released the cache to make room; a replayed allocator
            does so by itself.
        num_failed: how many requests failed in the recording.
    """

    sizes: Int64Array
    streams: Int64Array
    ops: Int64Array
    event: Int64Array
    as_it_lay: Int64Array
    packed: Int64Array
    num_emptied: int
    num_retries: int
    num_failed: int

    @property
    def has_pools(self) -> bool:
        """True if blocks are in private pools."""
        return bool((-self.ops[self.ops < 0] & 7 == POOL).any())

    def play(
        self, settings: AllocatorSettings, *, before: str = "packed", ignored: Sequence[int] = ()
    ) -> AllocatorOutcome | None:
        """Plays the requests by the rules of PyTorch's allocator; see `play_requests`.

        before: the name of the operations that lead to the state before the first event.
        """
        return play_requests(
            settings, sizes=self.sizes, streams=self.streams, ops=self.ops,
            before=getattr(self, before), ignored=ignored,
        )  # fmt: skip

    def write(self, path: Path) -> None:
        """Writes the file that ground/programs/allocator_replay.py reads."""
        names = ("sizes", "streams", "ops", "as_it_lay", "packed")
        columns = {name: np.ascontiguousarray(getattr(self, name), np.int64) for name in names}
        with path.open("wb") as file:
            lengths = {name: len(column) for name, column in columns.items()}
            file.write(json.dumps(lengths).encode() + b"\n")
            for column in columns.values():
                file.write(column.tobytes())


def find_requests(
    snapshot: Snapshot, replay: Replay, device: int, order: Platform = Platform.WINDOWS
) -> Requests:
    """The requests of one device's trace.

    order: the system in whose order segments that were there before the trace get their addresses;
        for an allocator that goes by their age, that of Windows.
    """
    blocks, events = replay.blocks, snapshot.events_of(device)
    pools = _pools_of(snapshot, replay, events)
    streams = _number(blocks.stream)
    before = lay_out(snapshot, replay, device, (streams, pools), order)
    count = len(blocks) + len(before.sizes)
    kinds = find_emptied(snapshot, replay, events)
    ops, event = _with_pools(*_in_order(replay, events, kinds, count), pools, count)
    return Requests(
        sizes=np.concatenate([np.maximum(blocks.requested_bytes, 1), before.sizes]),
        streams=np.concatenate([streams, before.streams]),
        ops=ops,
        event=event,
        as_it_lay=before.as_it_lay,
        packed=before.packed,
        num_emptied=sum(kind != RETRY for kind in kinds.values()),
        num_retries=sum(kind == RETRY for kind in kinds.values()),
        num_failed=int((events.action == Action.OOM).sum()),
    )


def _number(handles: Int64Array) -> Int64Array:
    """The number of each stream: 0 for the default stream, whose handle is 0."""
    others = {handle: number for number, handle in enumerate(sorted({*handles.tolist()} - {0}), 1)}
    return np.array([others.get(handle, 0) for handle in handles.tolist()], dtype=np.int64)


def _pools_of(snapshot: Snapshot, replay: Replay, events: EventTable) -> Int64Array:
    """The pool of each block: from its event if events name pools, else from its segment if that
    exists at the end.
    """
    blocks = replay.blocks
    pools = np.zeros(len(blocks), dtype=np.int64)
    if len(snapshot.pools) < 2:
        return pools
    table, lives = snapshot.segments, replay.segments
    stays = np.flatnonzero(lives.death == replay.num_events)
    stays = stays[np.argsort(lives.address[stays])]
    if len(stays):
        at = np.searchsorted(lives.address[stays], blocks.address, side="right") - 1
        segment = stays[np.maximum(at, 0)]
        ends = lives.address[segment] + lives.size_bytes[segment]
        inside = (at >= 0) & (blocks.address < ends) & (lives.birth[segment] <= blocks.birth)
        order = np.argsort(table.address)
        row = order[np.searchsorted(table.address[order], blocks.address, side="right") - 1]
        pools = np.where(inside, table.pool[row], 0).astype(np.int64)
    if events.pool.any():
        pools = np.where(blocks.birth >= 0, events.pool[np.maximum(blocks.birth, 0)], pools)
    return pools.astype(np.int64)


def _in_order(
    replay: Replay, events: EventTable, emptied: Mapping[int, int], count: int
) -> tuple[Int64Array, Int64Array]:
    blocks = replay.blocks
    numbers = np.arange(len(blocks))
    born, dies = blocks.birth >= 0, blocks.death < replay.num_events
    failed = np.flatnonzero(events.action == Action.OOM)
    columns = [
        (numbers[born], blocks.birth[born]),
        (count + numbers[dies], blocks.death[dies]),
        (-np.array([*emptied.values()], np.int64), np.array([*emptied], np.int64)),
        (-(ATTEMPT + 8 * events.size_bytes[failed]), failed),
    ]
    return in_order(columns)


def in_order(columns: Sequence[tuple[Int64Array, Int64Array]]) -> tuple[Int64Array, Int64Array]:
    """Operations and their events by event; of one event, in the order of the columns."""
    ops, event = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    order = np.argsort(event, kind="stable")
    return ops[order], event[order]


def _with_pools(
    ops: Int64Array, event: Int64Array, pools: Int64Array, count: int
) -> tuple[Int64Array, Int64Array]:
    """The operations with changes of the pool between them, and their events."""
    is_alloc = (ops >= 0) & (ops < count)
    if not pools.any():
        return ops, event
    at = np.flatnonzero(is_alloc)
    pool_of = pools[ops[at]]
    changes = pool_of != np.insert(pool_of[:-1], 0, 0)
    where = at[changes]
    with_changes = np.insert(ops, where, -(POOL + 8 * pool_of[changes]))
    return with_changes, np.insert(event, where, event[where])
