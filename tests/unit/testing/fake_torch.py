"""A torch that has one GPU and only counts: `take` and `give` stand for allocations."""

from __future__ import annotations

from types import SimpleNamespace

_SEGMENT = 1 << 20
_levels = {"allocated": 0, "peak": 0, "reserved": 0, "reserved_peak": 0}


def take(num_bytes: int) -> None:
    """Allocates."""
    _levels["allocated"] += num_bytes
    _levels["peak"] = max(_levels["peak"], _levels["allocated"])
    _levels["reserved"] = max(_levels["reserved"], -(-_levels["allocated"] // _SEGMENT) * _SEGMENT)
    _levels["reserved_peak"] = max(_levels["reserved_peak"], _levels["reserved"])


def give(num_bytes: int) -> None:
    """Frees."""
    _levels["allocated"] -= num_bytes


def _reset(device: int) -> None:
    assert device == 0
    _levels.update(peak=_levels["allocated"], reserved_peak=_levels["reserved"])


def _empty_cache() -> None:
    _levels["reserved"] = -(-_levels["allocated"] // _SEGMENT) * _SEGMENT


_C = SimpleNamespace(_cuda_resetPeakMemoryStats=_reset)
cuda = SimpleNamespace(
    is_initialized=lambda: True,
    device_count=lambda: 1,
    memory_allocated=lambda device: _levels["allocated"],
    memory_reserved=lambda device: _levels["reserved"],
    max_memory_allocated=lambda device: _levels["peak"],
    max_memory_reserved=lambda device: _levels["reserved_peak"],
    reset_peak_memory_stats=lambda: _C._cuda_resetPeakMemoryStats(0),
    empty_cache=_empty_cache,
)
