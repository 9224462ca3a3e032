"""Matches the blocks of ullage's record with those of the snapshot's trace.

The record has every allocation of the process. The trace may have begun later or have lost its
oldest events. Both end at the same time, so the last allocations of both are the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ullage.explain.moments.course import Course
from ullage.log.blocks import Blocks
from ullage.log.model import Int64Array, Record, Request
from ullage.log.replay import Replay


@dataclass(frozen=True, slots=True)
class Match:
    """The block of the record that each block of the trace is.

    Attributes:
        record: what ullage wrote into the snapshot.
        recorded: the blocks of the record.
        row: (num_blocks,) the recorded block of each block of the trace; -1 if there is none.
        positions, events: moments that both have, ascending: the number of events in the record
            before the moment, and the event of the trace at the moment.
        num_events: of the trace.
        device: whose trace it is.
    """

    record: Record
    recorded: Blocks
    row: Int64Array
    positions: Int64Array
    events: Int64Array
    num_events: int
    device: int

    def event_after(self, position: Int64Array) -> Int64Array:
        """The first event of the trace after a position of the record."""
        place = np.searchsorted(self.positions, position, side="right")
        return np.append(self.events, self.num_events)[place]

    def carry(self, course: Course) -> Course:
        """The course of the record, by the events of the trace."""
        first = self.record.first_position
        begin = self.event_after(course.begin + first)
        begin[0] = -1
        return replace(
            course,
            begin=np.maximum.accumulate(begin),
            step_ends=self.event_after(course.step_ends + first),
            requests=tuple(map(self._carry_request, self.record.requests)),
        )

    def _carry_request(self, request: Request) -> Request:
        begin, end = self.event_after(np.array([request.begin, request.end])).tolist()
        return replace(request, begin=begin, end=end)


def match_record(record: Record, blocks: Blocks, replay: Replay, device: int) -> Match | None:
    """Matches a record, with its blocks, with the trace of a device; None if the two do not have
    the same allocations.
    """
    mine = np.flatnonzero(blocks.device == device)
    theirs = np.flatnonzero(replay.blocks.birth >= 0)
    num_before = len(mine) - len(theirs)
    if num_before < 0:
        return None
    if (blocks.size_bytes[mine[num_before:]] != replay.blocks.size_bytes[theirs]).any():
        return None
    row = np.full(len(replay.blocks), -1, dtype=np.int64)
    row[theirs] = mine[num_before:]
    # A block from before the trace is the last allocation at its address before the trace began.
    last_at = {int(blocks.address[number]): int(number) for number in mine[:num_before]}
    for block in np.flatnonzero(replay.blocks.birth < 0):
        row[block] = last_at.get(int(replay.blocks.address[block]), -1)
    return Match(record, blocks, row, *_moments(blocks, replay, row), replay.num_events, device)


def _moments(blocks: Blocks, replay: Replay, row: Int64Array) -> tuple[Int64Array, Int64Array]:
    """The births and deaths that record and trace share."""
    born = np.flatnonzero((replay.blocks.birth >= 0) & (row >= 0))
    died = np.flatnonzero((replay.blocks.death < replay.num_events) & (row >= 0))
    recorded = np.concatenate([blocks.birth[row[born]], blocks.death[row[died]]])
    events = np.concatenate([replay.blocks.birth[born], replay.blocks.death[died]])
    order = np.argsort(recorded, kind="stable")
    # If another stream still used a block, the trace has its free later than the record.
    later = np.minimum.accumulate(events[order][::-1])[::-1] if len(order) else events
    return recorded[order] + blocks.first_position + 1, later
