"""Devices: their memory, and peaks as torch.cuda.memory_stats() would give them had nobody reset
them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from ullage.protocol.variables import device_property
from ullage.record import library, torch_internals
from ullage.record.patches import Patches

if TYPE_CHECKING:
    from ullage.trace.record_schema import DeviceFields, PeakFields

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
_PRESSURE = {
    "num_alloc_retries": ("num_alloc_retries",),
    "num_device_frees": ("num_device_free",),
}


class Peaks:
    """Keeps what a reset would lose: peaks by their maximum, counts by their sum."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self._c = torch._C
        self._kept: dict[int, dict[str, int]] = {}

    def install(self, patches: Patches | None = None) -> None:
        """Looks at the statistics before the program resets them."""
        patches = patches or Patches()
        for name, keep in (
            ("_cuda_resetPeakMemoryStats", self._keep_peaks),
            ("_cuda_resetAccumulatedMemoryStats", self._keep_counts),
        ):
            reset = torch_internals.find(self._torch, f"torch._C.{name}")
            if reset is not None:
                patches.replace(self._c, name, _before(keep, reset))

    def describe(self, device: int) -> DeviceFields:
        """The totals of a device (bytes)."""
        properties = self._torch.cuda.get_device_properties(device)
        peaks, non_torch_bytes = self.of_device(device), library.non_torch_peak_bytes(device)
        if self._torch.cuda.get_allocator_backend() != "native":
            # The driver's pool is what PyTorch reserves.
            non_torch_bytes = max(0, non_torch_bytes - peaks["peak_reserved_bytes"])
        return {
            "index": device,
            "name": properties.name,
            "total_bytes": properties.total_memory,
            "context_bytes": int(device_property(os.environ, "context_bytes") or 0),
            "non_torch_bytes": non_torch_bytes,
            "outside": library.outside(device),
            "peak_of_all_bytes": library.peak_of_all_bytes(device),
            "place": library.place_of(device),
            **peaks,
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

    def _keep_peaks(self, device: int) -> None:
        self.keep_peaks(device, self._stats(device))

    def keep_peaks(self, device: int, stats: Mapping[str, Any]) -> None:
        """Notes peaks that are about to be reset."""
        peaks = self._kept.setdefault(device, {})
        for name, path in _PEAKS.items():
            peaks[name] = max(_look(stats, path), peaks.get(name, 0))

    def _keep_counts(self, device: int) -> None:
        counts, stats = self._kept.setdefault(device, {}), self._stats(device)
        for name, path in (_COUNTS | _PRESSURE).items():
            counts[name] = _look(stats, path) + counts.get(name, 0)

    def _stats(self, device: int) -> Mapping[str, Any]:
        """torch's statistics; none where an allocator of the program's (CUDAPluggableAllocator)
        stands in place of torch's own, and keeps none.
        """
        try:
            return cast("Mapping[str, Any]", self._c._cuda_memoryStats(device))
        except RuntimeError:
            return {}


def _before(keep: Any, reset: Any) -> Any:
    def reset_stats(device: int) -> Any:
        keep(device)
        return reset(device)

    return reset_stats


def _look(stats: Mapping[str, Any], path: tuple[str, ...]) -> int:
    """A statistic by its path; 0 where a backend does not keep it."""
    value: Any = stats
    for key in path:
        value = value.get(key, 0) if isinstance(value, dict) else 0
    return int(value)
