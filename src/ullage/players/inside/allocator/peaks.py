"""Devices: their memory, and peaks as torch.cuda.memory_stats() would give them had nobody reset
them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from ullage.players.inside import torch_internals
from ullage.players.inside.part import Part
from ullage.players.inside.patches import Patches

if TYPE_CHECKING:
    from ullage.log.record_schema import PeakFields

_PEAKS = {
    "peak_requested_bytes": ("requested_bytes", "all", "peak"),
    "peak_allocated_bytes": ("allocated_bytes", "all", "peak"),
    "peak_reserved_bytes": ("reserved_bytes", "all", "peak"),
    "num_segments": ("segment", "all", "peak"),
}
_ALLOCATED_NOW = ("allocated_bytes", "all", "current")
_COUNTS = {
    "num_allocs": ("allocation", "all", "allocated"),
    "num_ooms": ("num_ooms",),
    "num_alloc_retries": ("num_alloc_retries",),
}
_PEAK = "peak"
_LEVELS = ("allocated_bytes", "reserved_bytes")
_RESETS = ("_cuda_resetPeakMemoryStats", "_cuda_resetAccumulatedMemoryStats")
Stats = dict[str, Any]
_PRESSURE = {
    "num_alloc_retries": ("num_alloc_retries",),
    "num_device_frees": ("num_device_free",),
}


class Peaks(Part):
    """Keeps what a reset would lose: peaks by their maximum, counts by their sum.

    torch has one peak, which counts from the last reset. Where it is the peak of each step that is
    wanted, and nothing is called as memory is allocated, it is reset after each step. A program
    that asks for its statistics gets what it would have got had nobody reset them but itself.

    is_taken: whether `take` is to be called, after each step.
    """

    def __init__(self, torch: ModuleType) -> None:
        self.is_taken = False
        self._torch = torch
        self._c: Any = torch._C
        self._read: Callable[[int], Stats] = self._c._cuda_memoryStats
        resets = {name: torch_internals.find(torch, f"torch._C.{name}") for name in _RESETS}
        self._reset_peaks, self._reset_counts = resets.values()
        self._kept: dict[int, dict[str, int]] = {}
        self._seen: dict[int, Stats] = {}  # by the program: the peaks that our resets took
        self._latest: dict[int, Stats] = {}

    def install(self, patches: Patches) -> None:
        """Stands in front of the program's resets, and of its questions."""
        if self._reset_peaks is not None:
            patches.replace(self._c, _RESETS[0], self._reset_peaks_for_program)
        if self._reset_counts is not None:
            patches.replace(self._c, _RESETS[1], self._reset_counts_for_program)
        if self.is_taken:
            patches.replace(self._c, "_cuda_memoryStats", self._stats_for_program)

    def take(self, device: int) -> tuple[int, int]:
        """The highest bytes since this was last called: allocated, reserved."""
        self._latest[device] = stats = self._read(device)
        allocated, reserved = (stats[name]["all"][_PEAK] for name in _LEVELS)
        self._keep_peaks(device, stats)
        self._seen[device] = _with_higher_peaks(stats, self._seen.get(device, {}))
        self._reset_peaks(device)
        return int(allocated), int(reserved)

    def latest(self, device: int) -> Stats:
        """The peaks that `take` has just read, or, where it did not, the statistics of now."""
        return self._latest.pop(device, None) or self._read(device)

    def _stats_for_program(self, device: int) -> Stats:
        return _with_higher_peaks(self._read(device), self._seen.get(device, {}))

    def _reset_peaks_for_program(self, device: int) -> Any:
        self._keep_peaks(device, self._stats(device))
        self._seen.pop(device, None)
        return self._reset_peaks(device)

    def _reset_counts_for_program(self, device: int) -> Any:
        counts, stats = self._kept.setdefault(device, {}), self._stats(device)
        for name, path in (_COUNTS | _PRESSURE).items():
            counts[name] = _look(stats, path) + counts.get(name, 0)
        return self._reset_counts(device)

    def describe(self, device: int) -> dict[str, Any]:
        """The device and its totals (bytes)."""
        properties = self._torch.cuda.get_device_properties(device)
        return {
            "index": device,
            "name": properties.name,
            "total_bytes": properties.total_memory,
            **self.of_device(device),
        }

    def of_device(self, device: int) -> PeakFields:
        """A device's peaks (bytes) and counts over the whole life of the process."""
        stats, earlier = self._stats(device), self._kept.get(device, {})
        peaks = {
            name: max(_look(stats, path), earlier.get(name, 0)) for name, path in _PEAKS.items()
        }
        counts = {name: _look(stats, path) + earlier.get(name, 0) for name, path in _COUNTS.items()}
        return cast("PeakFields", peaks | counts)

    def allocated_now(self) -> int:
        """Bytes that are allocated on the current device."""
        return _look(self._stats(self._torch.cuda.current_device()), _ALLOCATED_NOW)

    def count_pressure(self, device: int, stats: Mapping[str, Any]) -> tuple[int, int]:
        """Retries and cudaFrees of a device over the whole life of the process, whatever was
        reset, by its statistics of now.
        """
        earlier = self._kept.get(device, {})
        retries, frees = (_look(stats, path) + earlier.get(name, 0)
                          for name, path in _PRESSURE.items())  # fmt: skip
        return retries, frees

    def _keep_peaks(self, device: int, stats: Stats) -> None:
        peaks = self._kept.setdefault(device, {})
        for name, path in _PEAKS.items():
            peaks[name] = max(_look(stats, path), peaks.get(name, 0))

    def _stats(self, device: int) -> Stats:
        """torch's statistics; none where an allocator of the program's (CUDAPluggableAllocator)
        stands in place of torch's own, and keeps none.
        """
        try:
            return self._read(device)
        except RuntimeError:
            return {}


def _look(stats: Mapping[str, Any], path: tuple[str, ...]) -> int:
    """A statistic by its path; 0 where a backend does not keep it."""
    value: Any = stats
    for key in path:
        value = value.get(key, 0) if isinstance(value, dict) else 0
    return int(value)


def _with_higher_peaks(stats: Stats, others: Mapping[str, Any]) -> Stats:
    """The statistics, each peak of which becomes at least that of the others. They are changed in
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
