"""How much of a device was allocated and reserved at each moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ullage.trace.model import EventKind, Events, Int64Array


@dataclass(frozen=True, slots=True)
class Timeline:
    """The levels of one device, as columns: from `position` on, until the next entry, this much was
    in use.

    The first entry is the beginning of the record, with `base_bytes` already allocated.
    """

    position: Int64Array
    allocated_bytes: Int64Array
    reserved_bytes: Int64Array


class Level(NamedTuple):
    """What was in use at one position."""

    position: int
    allocated_bytes: int
    reserved_bytes: int


def trace_levels(
    events: Events, device: int, first_position: int = 0, base_bytes: int = 0
) -> Timeline:
    """The levels of one device; `base_bytes` were allocated when the record began."""
    rows = np.flatnonzero((events.device == device) & (events.kind == EventKind.BLOCK))
    allocated = np.cumsum(events.size_bytes[rows]) + base_bytes
    reserved = events.reserved_bytes[rows]
    # What was reserved before the first event is known only to be nothing when the record is whole.
    reserved_before = int(reserved[0]) if first_position and len(rows) else 0
    return Timeline(
        position=np.concatenate(([first_position], rows + first_position + 1)).astype(np.int64),
        allocated_bytes=np.concatenate(([base_bytes], allocated)).astype(np.int64),
        reserved_bytes=np.concatenate(([reserved_before], reserved)).astype(np.int64),
    )


def level_at(timeline: Timeline, position: int) -> Level:
    """The levels at a position."""
    row = max(int(timeline.position.searchsorted(position, side="right")) - 1, 0)
    return Level(position, int(timeline.allocated_bytes[row]), int(timeline.reserved_bytes[row]))


def max_between(
    timeline: Timeline, levels: Int64Array, begin: Int64Array, end: Int64Array
) -> Int64Array:
    """The highest of `levels` (a column of the timeline) over each interval of positions
    begin..end, both included.
    """
    first = np.maximum(np.searchsorted(timeline.position, begin, side="right") - 1, 0)
    last = np.maximum(np.searchsorted(timeline.position, end, side="right") - 1, first)
    if len(first) == 0:
        return np.zeros(0, dtype=np.int64)
    # reduceat takes half-open pairs and needs every index to exist: one entry more at the end,
    # never part of a result.
    padded = np.append(levels, levels[-1])
    pairs = np.stack((first, last + 1), axis=1).ravel()
    return np.asarray(np.maximum.reduceat(padded, pairs)[::2], dtype=np.int64)
