"""GPU memory of a process besides its tensors: the allocator's slack."""

from __future__ import annotations

from typing import Final, NamedTuple

from ullage.estimate.training.history import replay
from ullage.estimate.training.timeline import Timeline

# A program that builds its model in another order has its blocks elsewhere, so these are bounds.
# In the cases of benchmarks/accuracy/estimate the replay's reserved bytes were wrong by less than
# _SEGMENTS segments (cuBLAS's workspace) and _RESERVED_FRAC of them; its allocated bytes by less
# than _BLOCKS_FRAC of them.
_SEGMENTS: Final = 2
_SEGMENT_BYTES: Final = 32 * 2**20
_RESERVED_FRAC: Final = 0.06
_BLOCKS_FRAC: Final = 0.01


class Interval(NamedTuple):
    """Bytes: a lower bound, the likely value and an upper bound."""

    low: int
    likely: int
    high: int


def find_slack(timeline: Timeline) -> tuple[Interval, Interval]:
    """Bytes that blocks have beyond the requests, and reserved bytes outside of blocks.

    The first: the allocator does not split a large block whose remainder would be below 1 MiB. The
    second: cached segments. Empty cached segments are released before an OOM, so the lower bound
    is 0.

    Counts: two steps of the program, event by event (history.py).
    Ignores: other allocations of the program, and another order of them.
    Error: the interval's; it holds all but the cases that docs/results/estimates.md marks.
    Source: c10/cuda/CUDACachingAllocator.cpp.
    """
    peaks = replay(timeline)
    peak_bytes = timeline.peak_bytes
    rounding = max(peaks.allocated_bytes - peak_bytes, 0)
    cached = max(peaks.reserved_bytes - peak_bytes - rounding, 0)
    error = _SEGMENTS * _SEGMENT_BYTES + int(_RESERVED_FRAC * peaks.reserved_bytes)
    most = rounding + int(_BLOCKS_FRAC * peak_bytes)
    return Interval(0, rounding, most), Interval(0, cached, cached + error)
