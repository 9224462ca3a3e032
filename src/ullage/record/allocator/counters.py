"""The peak of a step by the allocator's own counters: nothing is called as memory is allocated.

torch has one peak, which counts from the last reset. Here it is reset after each step, and a
program that asks for its statistics gets what it would have got had nobody reset them but itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from ullage.record.allocator.peaks import Peaks
from ullage.record.patches import Patches

_PEAK = "peak"
_LEVELS = ("allocated_bytes", "reserved_bytes")
Stats = dict[str, Any]


class Counters:
    """Takes peaks between two resets; `peaks` keeps those of the whole life of the process."""

    def __init__(self, torch: ModuleType, peaks: Peaks) -> None:
        self._c: Any = torch._C
        self._peaks = peaks
        self._stats: Callable[[int], Stats] = self._c._cuda_memoryStats
        self._reset: Callable[[int], None] = self._c._cuda_resetPeakMemoryStats
        self._seen: dict[int, Stats] = {}  # by the program: the peaks that our resets took
        self._latest: dict[int, Stats] = {}

    def install(self, patches: Patches) -> None:
        """Stands in front of the program's questions and resets."""
        patches.replace(self._c, "_cuda_memoryStats", self._stats_for_program)
        patches.replace(self._c, "_cuda_resetPeakMemoryStats", self._reset_for_program)

    def restore(self) -> None:
        """Ends; what the program would have seen of peaks before is lost: torch cannot be told."""
        self._seen.clear()

    def latest(self, device: int) -> Stats:
        """What `take` has just read, or, where it did not, the statistics of now."""
        return self._latest.pop(device, None) or self._stats(device)

    def take(self, device: int) -> tuple[int, int]:
        """The highest bytes since this was last called: allocated, reserved."""
        self._latest[device] = stats = self._stats(device)
        allocated, reserved = (stats[name]["all"][_PEAK] for name in _LEVELS)
        self._peaks.keep_peaks(device, stats)
        self._seen[device] = _with_higher_peaks(stats, self._seen.get(device, {}))
        self._reset(device)
        return int(allocated), int(reserved)

    def _stats_for_program(self, device: int) -> Stats:
        return _with_higher_peaks(self._stats(device), self._seen.get(device, {}))

    def _reset_for_program(self, device: int) -> None:
        self._peaks.keep_peaks(device, self._stats(device))
        self._seen.pop(device, None)
        self._reset(device)


def _with_higher_peaks(stats: Stats, others: Mapping[str, Any]) -> Stats:
    """The statistics, each peak of which becomes at least what the others have. They are changed in
    place: torch makes new ones for each question.
    """
    for name, value in stats.items():
        other = others.get(name)
        if not isinstance(value, dict) or not isinstance(other, dict):
            continue
        if _PEAK in value:
            value[_PEAK] = max(value[_PEAK], other.get(_PEAK, 0))
        else:
            _with_higher_peaks(value, other)
    return stats
