"""Where a program, or the allocator for it, gave the cache back.

find_emptied(snapshot, replay, events)      {event: EMPTY_CACHE, RETRY or DROP_POOL}
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ullage.programs.allocator_replay import DROP_POOL, EMPTY_CACHE, RETRY
from ullage.trace.blocks import held_before
from ullage.trace.replay import Replay
from ullage.trace.snapshot import Action, EventTable, Snapshot

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
