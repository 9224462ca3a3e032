"""Host memory of a run: of processes that were there at once, the sum of what each took at most.

host = host_memory(records)
host.peak_bytes, host.needed_bytes, host.pinned_peak_bytes
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ullage.trace.model import Record


class HostMemory(NamedTuple):
    """Bytes of host memory. `peak` was resident here; `needed` is what the same program takes at
    least on a machine with the GPU, where weights are really filled and pinned memory is resident,
    without what the GPU's driver takes; `pinned_peak` is a part of `needed`.
    """

    peak_bytes: int
    needed_bytes: int
    pinned_peak_bytes: int


def host_memory(records: Sequence[Record]) -> HostMemory:
    """Host memory of processes that used a device; others, such as workers that load data, are not
    counted. An upper end where peaks of processes do not coincide, and where they share pages.
    """
    # The most processes are there when one of them has just come.
    crowds = [
        [record for record in records if record.started_s <= last.started_s <= record.ended_s]
        for last in records
    ]
    return HostMemory(
        max((sum(process.host_peak_bytes for process in crowd) for crowd in crowds), default=0),
        max((sum(_needed(process) for process in crowd) for crowd in crowds), default=0),
        max((sum(process.pinned_peak_bytes for process in crowd) for crowd in crowds), default=0),
    )


def _needed(record: Record) -> int:
    return max(record.host_needed_bytes, record.host_peak_bytes, record.pinned_peak_bytes)
