"""Brings what ullage recorded of a run together with the trace of its snapshot.

The record knows every allocation of the process; the trace may have begun later or have lost its
oldest events, but both end together: the last allocations of one are those of the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ullage.trace.lifetime import Lifetimes, find_lifetimes
from ullage.trace.model import Int64Array, Record
from ullage.trace.replay import Replay


@dataclass(frozen=True, slots=True)
class Match:
    """Which allocation of the record each block of the trace is.

    Attributes:
        record: what ullage wrote into the snapshot.
        lifetimes: the allocations of the record.
        row: (num_blocks,) of each block its allocation; -1 where the record has none.
        positions, events: moments in both: after so many events of the record, that event of the
            trace came; ascending.
    """

    record: Record
    lifetimes: Lifetimes
    row: Int64Array
    positions: Int64Array
    events: Int64Array

    def event_after(self, position: Int64Array, num_events: int) -> Int64Array:
        """The first event of the trace that came after a position of the record."""
        place = np.searchsorted(self.positions, position, side="right")
        return np.append(self.events, num_events)[place]


def match_record(record: Record, replay: Replay, device: int) -> Match | None:
    """The allocations of a record that are the blocks of a trace; None where the two do not tell of
    the same allocations.
    """
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
    # Of those from before the trace: the last at their address before it began.
    last_at = {int(lives.address[number]): int(number) for number in mine[:num_before]}
    for block in np.flatnonzero(replay.blocks.birth < 0):
        row[block] = last_at.get(int(replay.blocks.address[block]), -1)
    return Match(record, lives, row, *_moments(lives, replay, row))


def _moments(lives: Lifetimes, replay: Replay, row: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Births and deaths that both have."""
    born = np.flatnonzero((replay.blocks.birth >= 0) & (row >= 0))
    died = np.flatnonzero((replay.blocks.death < replay.num_events) & (row >= 0))
    positions = np.concatenate([lives.birth[row[born]], lives.death[row[died]]])
    events = np.concatenate([replay.blocks.birth[born], replay.blocks.death[died]])
    order = np.argsort(positions, kind="stable")
    # A block that another stream still used is freed later than the record has it.
    later = np.minimum.accumulate(events[order][::-1])[::-1] if len(order) else events
    return positions[order], later
