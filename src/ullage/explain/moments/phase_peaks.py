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
    course, levels = device.course, device.levels.allocated_bytes
    stop = len(levels) - 1 if last is None else last + 1
    # Each name with the levels that it has, from before one event to before another.
    spans: list[tuple[str | None, int, int]] = []
    if course.has_phases:
        is_setup = np.cumsum(course.phase == Phase.FORWARD) == 0
        names = [
            SETUP if is_before else PHASE_NAMES.get(Phase(code))
            for is_before, code in zip(is_setup.tolist(), course.phase.tolist(), strict=True)
        ]
        spans += zip(names, np.maximum(course.begin, 0).tolist(), course.end.tolist(), strict=True)
    elif course.num_steps and last is None:
        end = int(course.step_ends[0])
        spans += [(FIRST_STEP, 0, end), (LATER_STEPS, end, stop)]
    if course.num_steps and last is None:
        end = int(course.step_ends[-1])
        spans.append((HELD, end, end))
    peaks: dict[str, PhasePeak] = {}
    for name, begin, end in spans:
        if name is not None and begin <= stop:
            moment = begin + int(levels[begin : min(end, stop) + 1].argmax())
            peak = PhasePeak(moment - 1, int(levels[moment]))
            peaks[name] = max(peaks.get(name, peak), peak, key=lambda each: each.size_bytes)
    return {name: peaks[name] for name in _ORDER if name in peaks}
