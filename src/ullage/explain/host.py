"""Host memory of a run: of processes that were there at once, the sum of what each took at most.

host = host_memory(records)
host.peak_bytes, host.needed_bytes, host.pinned_peak_bytes
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

from ullage.ground.protocol.plain import As
from ullage.log.model import Record


class HostMemory(NamedTuple):
    """Bytes of host memory. `peak` was resident here; `needed` is what the program takes at least
    on a machine with the GPU, where weights are filled and pinned memory is resident, without what
    the driver takes, `needed_high` if copies are done late; `pinned_asked` is before rounding.
    """

    peak_bytes: Annotated[int, As("host_peak_bytes")]
    needed_bytes: Annotated[int, As("host_needed_bytes")]
    needed_high_bytes: Annotated[int, As("host_needed_high_bytes")]
    pinned_low_bytes: int
    pinned_peak_bytes: int
    pinned_asked_bytes: int


def host_memory(records: Sequence[Record]) -> HostMemory:
    """Host memory of processes that used a device; others, such as workers that load data, are not
    counted. An upper end where peaks of processes do not coincide, and where they share pages.
    """
    # The most processes are there when one of them has just come.
    crowds = [
        [record for record in records if record.started_s <= last.started_s <= record.ended_s]
        for last in records
    ]
    of_crowds = [
        [sum(sizes) for sizes in zip(*map(_host_memory, crowd), strict=True)] for crowd in crowds
    ]
    return HostMemory(*map(max, zip(*of_crowds, strict=True))) if crowds else HostMemory(*[0] * 6)


def _host_memory(record: Record) -> HostMemory:
    pinned = record.pinned_peak_bytes
    # A record that does not say was of work that is measured, or of before.
    low, asked = record.pinned_low_peak_bytes or pinned, record.pinned_asked_peak_bytes or pinned
    high = max(record.host_needed_bytes, record.host_peak_bytes, pinned)
    return HostMemory(record.host_peak_bytes, high - (pinned - low), high, low, pinned, asked)
