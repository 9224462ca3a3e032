"""A torch that has one GPU and only counts: `take` and `give` stand for allocations."""

from __future__ import annotations

from types import SimpleNamespace

_SEGMENT = 1 << 20
_now = {"allocated": 0, "reserved": 0, "requested": 0}
_peak = dict(_now)


def take(num_bytes: int, *, rounding: int = 0) -> None:
    """Allocates; the block is larger by the rounding."""
    _now["requested"] += num_bytes
    _now["allocated"] += num_bytes + rounding
    _now["reserved"] = max(_now["reserved"], -(-_now["allocated"] // _SEGMENT) * _SEGMENT)
    _peak.update({name: max(level, _peak[name]) for name, level in _now.items()})


def give(num_bytes: int, *, rounding: int = 0) -> None:
    """Frees."""
    _now["requested"] -= num_bytes
    _now["allocated"] -= num_bytes + rounding


def _reset(device: int) -> None:
    assert device == 0
    _peak.update(_now)


def _empty_cache() -> None:
    _now["reserved"] = -(-_now["allocated"] // _SEGMENT) * _SEGMENT


def _memory_stats(device: int) -> dict[str, int]:
    kinds = {"current": _now, "peak": _peak}
    return {
        f"{name}_bytes.all.{kind}": level
        for kind, levels in kinds.items()
        for name, level in levels.items()
    }


_C = SimpleNamespace(_cuda_resetPeakMemoryStats=_reset)
cuda = SimpleNamespace(
    is_initialized=lambda: True,
    device_count=lambda: 1,
    memory_stats=_memory_stats,
    reset_peak_memory_stats=lambda: _C._cuda_resetPeakMemoryStats(0),
    empty_cache=_empty_cache,
)
