"""How much depends on whether Inductor's cache is cold.

Where it is, Inductor times its kernels before it first launches them, and what that allocates moves
the peak of what is reserved, up or down. The run itself is the cold end. The warm end is measured
by a replay (explain/whatif/tuning.py) where the run kept a snapshot; where it kept none, no less
can be reserved than was allocated.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ullage.ground.protocol.plain import As, Mark
from ullage.log.bounds import Otherwise
from ullage.log.model import DeviceTotals, Record


@dataclass(frozen=True, slots=True)
class Tuning:
    """Both ends of the peak of what a device's allocator held.

    Attributes:
        low_bytes, high_bytes: of it; equal where nothing depends on it.
        num_blocks: how many blocks the timing of kernels allocated; None where it is not known.
        largest_bytes: the largest of them; likewise.
        allocated_low_bytes: the peak of what was allocated without them.
    """

    low_bytes: Annotated[int, Mark.NO_KEY]
    high_bytes: Annotated[int, Mark.NO_KEY]
    num_blocks: Annotated[int | None, As("num_timing_blocks")]
    largest_bytes: Annotated[int | None, Mark.NO_KEY]
    allocated_low_bytes: Annotated[int, Mark.NO_KEY]


def find_tuning(record: Record, totals: DeviceTotals) -> Tuning:
    """Both ends of one device of a process."""
    cold, allocated = totals.peak_reserved_bytes, totals.peak_allocated_bytes
    warm = record.otherwise_on(totals.index, Otherwise.TUNING)
    on_others = any(other.what is Otherwise.TUNING for other in record.otherwise)
    if not record.num_timed or (warm is None and on_others):
        return Tuning(cold, cold, 0, 0, allocated)
    if warm is None or not warm.peaks:
        return Tuning(min(cold, allocated), cold, None, None, allocated)
    ends = [cold, *(peaks.reserved_bytes for peaks in warm.peaks)]
    without = min(allocated, warm.peaks[0].allocated_bytes)
    return Tuning(min(ends), max(ends), warm.num_blocks, warm.block_bytes, without)
