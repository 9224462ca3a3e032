"""The latest minutes of each GPU, for sparklines: of bounded size, however long it runs.

history = History()
history.add(sample)
history.of(sample.devices[0]).used_fracs
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from ullage.operate.watch.sample import DeviceSample, Sample

_MAX_POINTS: Final = 120
_MIN_PAUSE_S: Final = 1.0
_MAX_COURSES: Final = 256

_Key = tuple[int, str | None]


@dataclass(frozen=True, slots=True)
class Course:
    """A GPU's course, oldest first: a point a second, at most 120; None where it was unknown."""

    used_fracs: tuple[float | None, ...] = ()
    gpu_fracs: tuple[float | None, ...] = ()


class History:
    """Remembers a point a second of each GPU."""

    def __init__(self) -> None:
        self._points: dict[_Key, tuple[deque[float | None], deque[float | None]]] = {}
        self._due_s: float | None = None

    def add(self, sample: Sample) -> None:
        """Takes the sample, if a second has passed since the last one that was taken."""
        # A clock that is set back, or the next recording, begins again.
        is_early = self._due_s is not None and 0 < self._due_s - sample.time_s <= _MIN_PAUSE_S
        if is_early:
            return
        self._due_s = sample.time_s + _MIN_PAUSE_S * 0.95
        for device in sample.devices:
            key = _key(device)
            if key not in self._points:
                self._points[key] = deque(maxlen=_MAX_POINTS), deque(maxlen=_MAX_POINTS)
            used, load = self._points[key]
            used.append(_used_frac(device))
            load.append(device.gpu_frac)
        if len(self._points) > _MAX_COURSES:  # MIG devices come and go
            here = {_key(device) for device in sample.devices}
            self._points = {key: self._points[key] for key in self._points if key in here}

    def of(self, device: DeviceSample) -> Course:
        """The course of a GPU; empty if there is none yet."""
        used, load = self._points.get(_key(device), ((), ()))
        return Course(tuple(used), tuple(load))


def _key(device: DeviceSample) -> _Key:
    return device.index, device.uuid


def _used_frac(device: DeviceSample) -> float | None:
    if device.used_bytes is None or not device.total_bytes:
        return None
    return device.used_bytes / device.total_bytes
