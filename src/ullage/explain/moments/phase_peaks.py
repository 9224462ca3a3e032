"""The peak of each phase of a trace, by which runs of different lengths are compared.

    peaks = find_phase_peaks(device)
    peaks["backward"].event, peaks["backward"].size_bytes

The phases of ullage's recordings are set-up, forward, backward and optimizer. The phases of other
snapshots, if steps are known or visible in the stacks, are the first step with everything before
it, and the later steps. Both have the memory that is still in use when the last step has ended.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ullage.explain.moments.course import Phase
from ullage.explain.moments.steps import PHASE_NAMES
from ullage.explain.snapshot import DeviceSnapshot

SETUP, FIRST_STEP, LATER_STEPS = "set-up", "first step", "later steps"
HELD = "after steps"
_ORDER = (SETUP, *dict.fromkeys(PHASE_NAMES.values()), FIRST_STEP, LATER_STEPS, HELD)


class PhasePeak(NamedTuple):
    """The event after which allocated bytes peak, and the peak."""

    event: int
    size_bytes: int


def find_phase_peaks(device: DeviceSnapshot, last: int | None = None) -> dict[str, PhasePeak]:
    """Returns the peak of each phase up to the event `last`, in order; none if neither steps nor
    phases are known.
    """
    course = device.course
    end_of_all = device.replay.num_events if last is None else last + 1
    peaks: dict[str, PhasePeak] = {}
    if course.has_phases:
        phases, begins = course.phase.tolist(), np.maximum(course.begin, 0).tolist()
        for number, begin in enumerate(begins):
            is_before = Phase.FORWARD not in phases[: number + 1]
            name = SETUP if is_before else PHASE_NAMES.get(Phase(phases[number]))
            end = begins[number + 1] if number + 1 < len(begins) else end_of_all
            if name is not None and begin <= end_of_all:
                _raise(peaks, name, device, begin, min(end, end_of_all))
    elif course.num_steps and last is None:
        end = int(course.step_ends[0])
        _raise(peaks, FIRST_STEP, device, 0, end)
        _raise(peaks, LATER_STEPS, device, end, device.replay.num_events)
    if course.num_steps and last is None:
        end = int(course.step_ends[-1])
        _raise(peaks, HELD, device, end, end)
    return {name: peaks[name] for name in _ORDER if name in peaks}


def _raise(
    peaks: dict[str, PhasePeak], name: str, device: DeviceSnapshot, begin: int, end: int
) -> None:
    """Adds to a phase the time from before the event `begin` to before the event `end`."""
    levels = device.levels.allocated_bytes[begin : end + 1]
    moment = begin + int(levels.argmax())
    peak = PhasePeak(moment - 1, int(device.levels.allocated_bytes[moment]))
    if name not in peaks or peak.size_bytes > peaks[name].size_bytes:
        peaks[name] = peak
