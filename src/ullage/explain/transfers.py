"""Copies between host and device that come again in every step, and pinned memory that grows.

What is copied once, such as the weights, is not a part of the input pipeline. Of the rest it
matters whether the memory of the host is pinned, whether the program waits for the copy, and
whether it is on the stream that computes: each of the three keeps a copy from
going on beside the computing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from ullage.explain.moments.course import Course
from ullage.explain.owners.matching import Match
from ullage.ground.protocol.plain import Mark
from ullage.log.blocks import BoolArray, find_blocks
from ullage.log.model import Copies, Int64Array
from ullage.log.replay import Replay

_MIN_STEPS = 3
_OFTEN_FRAC = 0.5


@dataclass(frozen=True, slots=True)
class Transfers:
    """Copies of one kind that most steps have.

    Attributes:
        is_to_device, is_pinned, is_waited_for: see `trace.model.Copies`.
        is_beside: whether they are on other streams than the one that computes.
        num_copies: in all steps but the first, and those whose copies were lost.
        num_steps: in how many of these they come.
        num_known_steps: how many of these there are.
        step_bytes: in one of them; the median.
        blocks: numbers in `Replay.blocks` of what they are copied to or from.
    """

    is_to_device: Annotated[bool, Mark.NO_KEY]
    is_pinned: bool
    is_waited_for: bool
    is_beside: bool
    num_copies: int
    num_steps: int
    num_known_steps: Annotated[int, Mark.NO_KEY]
    step_bytes: int
    blocks: Annotated[tuple[int, ...], Mark.NO_KEY]


@dataclass(frozen=True, slots=True)
class Pinned:
    """Pinned memory when steps ended: (num_steps,) bytes; low: if all work is done at once."""

    size_bytes: Int64Array
    low_bytes: Int64Array


def find_transfers(match: Match, replay: Replay, course: Course) -> tuple[Transfers, ...] | None:
    """The copies of steps by kind, the most bytes first; None where copies were not recorded."""
    copies = match.record.copies
    if copies is None:
        return None
    event = match.event_after(copies.position)
    step = course.step_at(event)
    # The first step comes with all that is copied once; a record that lost some begins in a step.
    is_cut = match.record.num_lost_copies > 0 and len(step) > 0
    first = max(1, int(step[0]) + 1) if is_cut else 1
    num_steps = course.num_steps - first
    here = (copies.device == match.device) & (step >= first) & (step < course.num_steps)
    streams, place = np.unique(replay.blocks.stream, return_inverse=True)
    sizes = np.bincount(place, weights=replay.blocks.size_bytes)
    is_beside = copies.stream != (streams[np.argmax(sizes)] if len(streams) else 0)
    kinds = copies.is_to_device * 8 + copies.is_pinned * 4 + copies.is_waited_for * 2 + is_beside
    transfers = []
    for kind in np.unique(kinds[here]).tolist():
        rows = np.flatnonzero(here & (kinds == kind))
        steps = np.unique(step[rows])
        if len(steps) < max(_MIN_STEPS, _OFTEN_FRAC * num_steps):
            continue
        sums = np.bincount(step[rows], weights=copies.size_bytes[rows])[steps]
        transfers.append(
            Transfers(
                is_to_device=bool(kind & 8),
                is_pinned=bool(kind & 4),
                is_waited_for=bool(kind & 2),
                is_beside=bool(kind & 1),
                num_copies=len(rows),
                num_steps=len(steps),
                num_known_steps=num_steps,
                step_bytes=int(np.median(sums)),
                blocks=_blocks_of(match, copies, rows),
            )
        )
    return tuple(sorted(transfers, key=lambda transfer: -transfer.step_bytes))


def find_pinned(match: Match, course: Course) -> Pinned | None:
    """How much was pinned when each step ended; None where that was not recorded."""
    pinned, ends = match.record.pinned, []
    if pinned is None:
        return None
    for levels in (pinned, match.record.pinned_low or pinned):
        events = match.event_after(levels.position)
        place = np.searchsorted(events, course.step_ends, side="right")
        ends.append(np.append(0, levels.size_bytes)[place])
    return Pinned(*ends)


def _blocks_of(match: Match, copies: Copies, rows: Int64Array) -> tuple[int, ...]:
    """The blocks of the trace that copies went to or came from, each once."""
    lives = find_blocks(
        match.recorded, copies.position[rows], copies.device[rows], copies.address[rows]
    )
    is_copied: BoolArray = np.isin(match.row, lives) & (match.row >= 0)
    return tuple(np.flatnonzero(is_copied).tolist())
