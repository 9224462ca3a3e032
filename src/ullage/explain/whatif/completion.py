"""The peak of reserved memory if the device finished all its work at once.

On the phantom, work is finished when the host has waited for it, so a block that another stream has
used is reused as late as possible. That gives the upper bound. For the lower bound, the requests of
the trace are replayed with each block freed where the program released it.

    measure_at_once(read_snapshot(path), record, where)       `OtherPeaks` of each device
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ullage.explain.owners.dead_weight import find_last_uses
from ullage.explain.owners.matching import match_record
from ullage.explain.reserved import find_kept
from ullage.explain.whatif.replays import Where
from ullage.explain.whatif.variants import replay_variants
from ullage.log.blocks import Blocks, held_before, pair_events, read_blocks
from ullage.log.bounds import OtherPeaks, Otherwise, Peaks
from ullage.log.model import Record
from ullage.log.replay import Replay, replay
from ullage.log.requests import find_requests
from ullage.log.snapshot import Action, EventTable, Int64Array, Snapshot


def measure_at_once(
    snapshot: Snapshot, record: Record | None, where: Where
) -> tuple[OtherPeaks, ...]:
    """The other end of each device that a trace tells of.

    The record knows which blocks were kept for collectives, which go after their last use here.

    A device on which nothing was held back needs no replay. What a replay says counts where a
    replay of what was recorded comes to what was recorded; elsewhere there is no figure.

    Raises: EnvironmentProblem: the replay failed.
    """
    return tuple(
        _measure(snapshot, record, device, where)
        for device, events in enumerate(snapshot.events)
        if len(events)
    )


def _measure(snapshot: Snapshot, record: Record | None, device: int, where: Where) -> OtherPeaks:
    late, events = replay(snapshot, device), snapshot.events_of(device)
    given_back = let_go(late.blocks, events)
    if record is not None:
        given_back = np.minimum(given_back, _last_uses_of_kept(record, late, device))
    before = np.append(0, np.cumsum(events.action == Action.ALLOC))
    is_held = before[late.blocks.death] > before[given_back]
    reserved = held_before(late.segments, late.num_events)
    peak = int(reserved.argmax())
    at_peak = is_held & (given_back < peak) & (late.blocks.death >= peak)
    allocated = int(held_before(late.blocks, late.num_events).max())
    peaks: Sequence[Peaks] = [Peaks(int(reserved[peak]), allocated)]
    if is_held.any():
        once = replace(late, blocks=replace(late.blocks, death=given_back))
        # Empty where a replay of the recorded requests does not come to the recorded peak.
        variants = [find_requests(snapshot, end, device) for end in (late, once)]
        peaks = replay_variants(snapshot, device, late, variants, where)
    held_bytes = int(late.blocks.size_bytes[at_peak].sum())
    number = int(is_held.sum())
    return OtherPeaks(Otherwise.COMPLETION, device, tuple(peaks), number, held_bytes)


def let_go(blocks: Blocks, events: EventTable) -> Int64Array:
    """The event at which the program gave back each block; its death where none says so."""
    rows = np.flatnonzero(np.isin(events.action, (Action.ALLOC, Action.FREE_REQUESTED)))
    is_birth, end = events.action[rows] == Action.ALLOC, len(events)
    birth, request, _ = pair_events(events.address[rows], is_birth, rows, end)
    requested_at: Int64Array = np.full(end + 1, end, dtype=np.int64)
    requested_at[birth] = request
    requested_at[-1] = end  # of what was there before
    return np.minimum(blocks.death, requested_at[blocks.birth])


def _last_uses_of_kept(record: Record, late: Replay, device: int) -> Int64Array:
    """(num_blocks,) the event after the last use of each block that was kept for a collective; of
    the others their death.
    """
    death = late.blocks.death
    match = match_record(record, read_blocks(record), late, device)
    used = None if match is None else find_last_uses(match, late)
    if match is None or used is None or not len(match.recorded):
        return death
    is_kept = find_kept(record, match.recorded)[match.row] & (match.row >= 0)
    return np.where(is_kept, np.maximum(used, late.blocks.birth + 1), death)
