"""The highest moment of each phase of a trace: what two runs of different length are compared by.

    peaks = find_phase_peaks(device)
    peaks["backward"].event, peaks["backward"].size_bytes

In what ullage recorded: set-up, forward, backward, optimizer. In the snapshots of others, where
steps are known or are seen in the stacks: the first step with all that came before it, and the
later ones. In both: what is still held when the last step has ended.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ullage.explain.moments.phases import Phase
from ullage.explain.moments.steps import PHASE_NAMES
from ullage.explain.snapshot import DeviceSnapshot

SETUP, FIRST_STEP, LATER_STEPS = "set-up", "first step", "later steps"
HELD = "after steps"
_ORDER = (SETUP, *dict.fromkeys(PHASE_NAMES.values()), FIRST_STEP, LATER_STEPS, HELD)


class PhasePeak(NamedTuple):
    """The event after which most was allocated, and how much."""

    event: int
    size_bytes: int


def find_phase_peaks(device: DeviceSnapshot) -> dict[str, PhasePeak]:
    """The phases that a trace has, in their order; none where no steps are known, nor phases."""
    course = device.course
    peaks: dict[str, PhasePeak] = {}
    if course.has_phases:
        phases, begins = course.phase.tolist(), np.maximum(course.begin, 0).tolist()
        for number, begin in enumerate(begins):
            is_before = Phase.FORWARD not in phases[: number + 1]
            name = SETUP if is_before else PHASE_NAMES.get(Phase(phases[number]))
            end = begins[number + 1] if number + 1 < len(begins) else device.replay.num_events
            if name is not None:
                _raise(peaks, name, device, begin, end)
    elif course.num_steps:
        end = int(course.step_ends[0])
        _raise(peaks, FIRST_STEP, device, 0, end)
        _raise(peaks, LATER_STEPS, device, end, device.replay.num_events)
    if course.num_steps:
        end = int(course.step_ends[-1])
        _raise(peaks, HELD, device, end, end)
    return {name: peaks[name] for name in _ORDER if name in peaks}


def _raise(
    peaks: dict[str, PhasePeak], name: str, device: DeviceSnapshot, begin: int, end: int
) -> None:
    """Takes a stretch into a phase: from before the event `begin` to before the event `end`."""
    levels = device.levels.allocated_bytes[begin : end + 1]
    moment = begin + int(levels.argmax())
    peak = PhasePeak(moment - 1, int(device.levels.allocated_bytes[moment]))
    if name not in peaks or peak.size_bytes > peaks[name].size_bytes:
        peaks[name] = peak
