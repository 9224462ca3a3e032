"""Matches the allocations of ullage's record with the blocks of the snapshot's trace.

The record has every allocation of the process. The trace may have begun later or have lost its
oldest events. Both end at the same time, so the last allocations of both are the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ullage.trace.lifetime import Lifetimes, find_lifetimes
from ullage.trace.model import Int64Array, Record
from ullage.trace.replay import Replay


@dataclass(frozen=True, slots=True)
class Match:
    """The allocation in the record of each block of the trace.

    Attributes:
        record: what ullage wrote into the snapshot.
        lifetimes: the allocations of the record.
        row: (num_blocks,) the allocation of each block; -1 if the record has none.
        positions, events: moments that both have, ascending: the number of events in the record
            before the moment, and the event of the trace at the moment.
    """

    record: Record
    lifetimes: Lifetimes
    row: Int64Array
    positions: Int64Array
    events: Int64Array

    def event_after(self, position: Int64Array, num_events: int) -> Int64Array:
        """The first event of the trace after a position of the record."""
        place = np.searchsorted(self.positions, position, side="right")
        return np.append(self.events, num_events)[place]


def match_record(record: Record, replay: Replay, device: int) -> Match | None:
    """Matches a record with a trace; None if the two do not have the same allocations."""
    lives = find_lifetimes(record.events, record.first_position)
    mine = np.flatnonzero(lives.device == device)
    mine = mine[np.argsort(lives.birth[mine], kind="stable")]
    theirs = np.flatnonzero(replay.blocks.birth >= 0)
    num_before = len(mine) - len(theirs)
    if num_before < 0:
        return None
    same = lives.size_bytes[mine[num_before:]] == replay.blocks.size_bytes[theirs]
    if not same.all():
        return None
    row = np.full(len(replay.blocks), -1, dtype=np.int64)
    row[theirs] = mine[num_before:]
    # A block from before the trace is the last allocation at its address before the trace began.
    last_at = {int(lives.address[number]): int(number) for number in mine[:num_before]}
    for block in np.flatnonzero(replay.blocks.birth < 0):
        row[block] = last_at.get(int(replay.blocks.address[block]), -1)
    return Match(record, lives, row, *_moments(lives, replay, row))


def _moments(lives: Lifetimes, replay: Replay, row: Int64Array) -> tuple[Int64Array, Int64Array]:
    """The births and deaths that record and trace share."""
    born = np.flatnonzero((replay.blocks.birth >= 0) & (row >= 0))
    died = np.flatnonzero((replay.blocks.death < replay.num_events) & (row >= 0))
    positions = np.concatenate([lives.birth[row[born]], lives.death[row[died]]])
    events = np.concatenate([replay.blocks.birth[born], replay.blocks.death[died]])
    order = np.argsort(positions, kind="stable")
    # If another stream still used a block, the trace has its free later than the record.
    later = np.minimum.accumulate(events[order][::-1])[::-1] if len(order) else events
    return positions[order], later
