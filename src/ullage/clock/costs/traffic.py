"""The time of kernels that move memory: a start, and bytes at the memory's or the cache's rate.

    moved(gpu, Traffic(2e6, 4e6, 8e6), "elementwise")

What was written just before may still be in the L2 cache, so that the lower bound reads all that
fits from there. The likely value takes half of it from there: reads follow writes, while what is
written must go to the memory in the end. Both are assumptions.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ullage.clock.duration import Duration
from ullage.clock.kernels import memory_bound
from ullage.facts.gpus import Gpu

# The L2 cache's bandwidth where the catalogue has none, as a multiple of the memory's. Both GPUs of
# which it has it have 3.5 (A100: 7.2 of 2.04 TB/s; V100: 3.1 of 0.9 TB/s).
_L2_TIMES: Final = 3.5
# Tables hold whole kernels, whose fastest does some work. Assumed: an empty one takes half as long.
_EMPTY_SHARE: Final = 0.5
# How far what a kernel is said to be slower than a stream may be off, either way: assumed, and what
# others published lies inside (tests/unit/clock/test_published_kernels.py).
_LEAST_SLOWER, _MOST_SLOWER = 0.65, 1.35


class Traffic(NamedTuple):
    """Bytes that a kernel reads and writes: the lower bound, the likely value, the upper bound."""

    low: float
    likely: float
    high: float

    @staticmethod
    def of(num_bytes: float, low: float = 1.0, high: float = 1.0) -> Traffic:
        """Bytes, and factors for the bounds."""
        return Traffic(num_bytes * low, num_bytes, num_bytes * high)

    def scaled(self, times: float) -> Traffic:
        """The same bytes several times."""
        return Traffic(*(num_bytes * times for num_bytes in self))


def start_s(gpu: Gpu) -> float:
    """The time of a kernel that does nearly nothing, with the gap to the next one."""
    return memory_bound(gpu, 0).s


def moved(gpu: Gpu, traffic: Traffic, note: str = "", *, slower: float = 1.0) -> Duration:
    """The time of a kernel by its bytes.

    Args:
        note: what is assumed of the bytes; empty: nothing.
        slower: how many times the likely value is longer than that of a kernel that streams; the
            upper bound grows by as much again, up to a third; the lower bound has two thirds of it.

    Source: `memory_bound`. Assumes: see the module.
    """
    start = start_s(gpu)
    low, likely, high = (memory_bound(gpu, num_bytes) for num_bytes in traffic)
    l2_bytes_per_s = gpu.l2_bytes_per_s or _L2_TIMES * gpu.bandwidth_bytes_per_s
    l2_share = gpu.bandwidth_bytes_per_s / l2_bytes_per_s
    all_cached = _cached(gpu, traffic.low, 1.0)
    half_cached = 0.5 * _cached(gpu, traffic.likely, 0.5)
    streamed = max(0.0, low.low_s - start)
    streamed *= max(1.0, _LEAST_SLOWER * slower)
    low_s = start * _EMPTY_SHARE + streamed * (1 - all_cached * (1 - l2_share))
    likely_s = start + (likely.s - start) * (1 - half_cached * (1 - l2_share)) * slower
    high_s = start + (high.high_s - start) * slower * min(slower, _MOST_SLOWER)
    basis = likely.basis if not note else f"{likely.basis}; {note}"
    if half_cached:
        basis += "; half of it in the L2 cache"
    return Duration(min(low_s, likely_s), likely_s, max(high_s, likely_s), basis)


def at_least(duration: Duration, floor: Duration) -> Duration:
    """The longer of two, each bound on its own; the basis is that of the longer likely value."""
    basis = duration.basis if duration.s >= floor.s else floor.basis
    return Duration(
        max(duration.low_s, floor.low_s),
        max(duration.s, floor.s),
        max(duration.high_s, floor.high_s),
        basis,
    )


def _cached(gpu: Gpu, num_bytes: float, usable: float) -> float:
    """The share of the bytes that the L2 cache holds, if that much of it is free for them.

    Falls from 1, at the usable bytes, to 0 at twice as many, so that more bytes never take less
    time.
    """
    if not gpu.l2_bytes or num_bytes <= 0:
        return 0.0
    return min(1.0, max(0.0, 2.0 - num_bytes / (gpu.l2_bytes * usable)))
