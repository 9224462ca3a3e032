"""The peak of each step, and of each phase within it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from ullage.explain.phases import Phase, Regions
from ullage.trace.lifetime import NEVER
from ullage.trace.model import Int64Array, Mark, MarkKind
from ullage.trace.timeline import Timeline, max_between


class Peak(NamedTuple):
    """The highest levels over a stretch of the program, in bytes."""

    allocated_bytes: int
    reserved_bytes: int


# The phases a reader knows: the loss belongs to forward, clipping to backward.
PHASE_NAMES = MappingProxyType(
    {
        Phase.FORWARD: "forward",
        Phase.LOSS: "forward",
        Phase.BACKWARD: "backward",
        Phase.AFTER_BACKWARD: "backward",
        Phase.OPTIMIZER: "optimizer",
    }
)


@dataclass(frozen=True, slots=True)
class StepPeak:
    """The peak of one step; `is_complete` is False for a last step that did not end."""

    index: int
    peak: Peak
    phases: Mapping[str, Peak]
    is_complete: bool


def peak_per_step(
    timeline: Timeline, marks: Sequence[Mark], regions: Regions
) -> tuple[StepPeak, ...]:
    """The peak of each step of a device.

    The first step begins with the first forward pass (what comes before is set-up), each other
    where the one before ended.
    """
    ends = [(mark.position, mark.index) for mark in marks if mark.kind is MarkKind.STEP]
    first_forward = next(
        (mark.position for mark in marks if mark.kind is MarkKind.FORWARD_BEGIN), None
    )
    last_end = ends[-1][0] if ends else -1
    is_cut = any(
        mark.kind is MarkKind.FORWARD_BEGIN and mark.position >= last_end for mark in marks
    )
    stops = [position for position, _ in ends] + ([int(timeline.position[-1])] if is_cut else [])
    if not stops:
        return ()
    begin = [stops[0] if first_forward is None else min(first_forward, stops[0]), *stops[:-1]]
    peaks = _peaks(timeline, np.array(begin, dtype=np.int64), np.array(stops, dtype=np.int64))
    phases = _phase_peaks(timeline, regions, len(stops))
    result = []
    for row, peak in enumerate(peaks):
        index = ends[row][1] if row < len(ends) else None
        result.append(
            StepPeak(
                index=row if index is None else index,
                peak=peak,
                phases=MappingProxyType(phases[row]),
                is_complete=row < len(ends),
            )
        )
    return tuple(result)


def _peaks(timeline: Timeline, begin: Int64Array, end: Int64Array) -> list[Peak]:
    allocated = max_between(timeline, timeline.allocated_bytes, begin, end)
    reserved = max_between(timeline, timeline.reserved_bytes, begin, end)
    return [Peak(int(a), int(r)) for a, r in zip(allocated, reserved, strict=True)]


def _phase_peaks(timeline: Timeline, regions: Regions, num_steps: int) -> list[dict[str, Peak]]:
    """The peak of each phase of each step; a region belongs to the step in which it begins."""
    end = np.where(regions.end == NEVER, timeline.position[-1], regions.end)
    result: list[dict[str, Peak]] = [{} for _ in range(num_steps)]
    for row, peak in enumerate(_peaks(timeline, regions.begin, end)):
        name = PHASE_NAMES.get(Phase(int(regions.phase[row])))
        step = int(regions.step[row])
        if name is None or step >= num_steps:
            continue
        known = result[step].get(name, peak)
        result[step][name] = Peak(*map(max, known, peak))
    return result
