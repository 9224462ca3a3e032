"""What a process takes on a GPU beside its tensors: the allocator's slack, the driver's part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ullage.estimate.training.history import replay
from ullage.estimate.training.timeline import Timeline

if TYPE_CHECKING:
    from ullage.gpus.gpu import Gpu

__all__ = ["Interval", "find_context", "find_slack"]

# A program that builds its model in another order has its blocks in other places, and one that fits
# by a little may not fit. Of the cases in benchmarks/accuracy/estimate the replay was wrong by less
# than two segments for cuBLAS's workspace and this part of what is reserved; of what is in blocks
# by less than that part of it.
_SEGMENTS: Final = 2
_SEGMENT_BYTES: Final = 32 * 2**20
_RESERVED_FRAC: Final = 0.06
_BLOCKS_FRAC: Final = 0.01


class Interval(NamedTuple):
    """Bytes: the least, what is likely, and the most."""

    low: int
    likely: int
    high: int


def find_slack(timeline: Timeline) -> tuple[Interval, Interval]:
    """What blocks are larger than what they were asked for; what is reserved, but in no block.

    The first: a block of more than 1 MiB whose rest would be smaller than that is given whole. The
    second: segments that a program keeps for later, and gives back before it runs out of memory, as
    far as nothing lies in them; the least is therefore none.

    Counts: two steps of the program, event by event (history.py).
    Ignores: what else a program allocates, or in another order.
    Error: that of the interval, which holds all but the cases that docs/estimate-accuracy.md marks.
    Source: c10/cuda/CUDACachingAllocator.cpp.
    """
    peaks = replay(timeline)
    peak_bytes = timeline.peak_bytes
    rounding = max(peaks.allocated_bytes - peak_bytes, 0)
    cached = max(peaks.reserved_bytes - peak_bytes - rounding, 0)
    error = _SEGMENTS * _SEGMENT_BYTES + int(_RESERVED_FRAC * peaks.reserved_bytes)
    most = rounding + int(_BLOCKS_FRAC * peak_bytes)
    return Interval(0, rounding, most), Interval(0, cached, cached + error)


def find_context(gpu: Gpu) -> Interval:
    """What the driver holds for a process with PyTorch's kernels loaded: assumed.

    Counts: the catalogue's figure. Ignores: other processes; NCCL. Error: between its two ends; not
    compared with a GPU here. Source: gpus/catalog.toml.
    """
    return Interval(gpu.context_low_bytes, gpu.context_bytes, gpu.context_high_bytes)
