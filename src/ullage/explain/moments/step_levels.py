"""How much memory was in use over the time of a step.

The clock's spans say how many events of the allocator came before them. Memory is used in the order
of a stream, so an event belongs to the time at which the work given after it begins.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ullage.clock.step_time import StepTime
from ullage.explain.moments.levels import read_levels
from ullage.log.blocks import read_blocks
from ullage.log.model import EventKind, Int64Array, Record


@dataclass(frozen=True, slots=True)
class StepLevels:
    """Levels of a device in a step, as columns: from `start_s` after the step's begin on, until the
    next entry, this much was in use.
    """

    start_s: npt.NDArray[np.float64]
    allocated_bytes: Int64Array
    reserved_bytes: Int64Array


def timed_device(record: Record, time: StepTime) -> int:
    """The index of the timed device: where the clock does not say, the one with the most memory."""
    if time.device is not None:
        return time.device
    fullest = max(record.devices, key=lambda totals: totals.peak_reserved_bytes, default=None)
    return 0 if fullest is None else fullest.index


def step_levels(record: Record, time: StepTime) -> StepLevels:
    """The levels of the timed device in the timed step; none without spans."""
    work = [span for span in time.spans if span.stream >= 0]
    positions = np.array([span.position for span in work], np.int64)
    starts_s = np.array([span.start_s for span in work], np.float64)
    if not len(work):
        return StepLevels(starts_s, positions, positions)
    order = np.argsort(positions, kind="stable")
    positions, starts_s = positions[order], starts_s[order]
    # Work that was given later may begin earlier, on another stream; memory has one order.
    starts_s = np.minimum.accumulate(starts_s[::-1])[::-1]
    device, events = timed_device(record, time), record.events
    levels = read_levels(record, read_blocks(record), device)
    own = np.flatnonzero((events.device == device) & (events.kind == EventKind.BLOCK))
    places, first = np.append(0, own + 1), record.first_position
    begin, end = np.searchsorted(places, positions[[0, -1]] - first, side="right")
    places = places[max(begin - 1, 0) : max(end, 1)]
    later = np.searchsorted(positions, places + first, side="left")
    # Of events at the same time the last says what is in use from then on.
    moments_s = starts_s[np.minimum(later, len(starts_s) - 1)]
    is_last = np.append(moments_s[1:] > moments_s[:-1], True)
    places = places[is_last]
    return StepLevels(
        moments_s[is_last], levels.allocated_bytes[places], levels.reserved_bytes[places]
    )
