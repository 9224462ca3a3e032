"""Why a device ran out of memory: the arithmetic, and the verdict.

What is asked about a failed request, in this order:
    another process   does it, or a library, hold what is missing, beside the allocator?
    leaked            would it fit if what grows from step to step were not there?
    fragmented        is as much free, but in pieces?
    single spike      is this one request half of all that would be in use, or more?
    too big           none of these: the program needs more than there is
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

import numpy as np

from ullage.explain.fragmentation import Fragmentation
from ullage.explain.moments.growth import Growth
from ullage.trace.model import DeviceTotals
from ullage.trace.replay import Replay

_SPIKE_FRAC = 0.5
_OTHERS_FRAC = 0.05


class Cause(enum.Enum):
    """Why."""

    OTHERS = "another process or library holds the memory"
    LEAKED = "leaked"
    FRAGMENTED = "fragmented"
    SPIKE = "a single spike"
    TOO_BIG = "too big"


@dataclass(frozen=True, slots=True)
class Shortage:
    """A request that failed, and what there was; bytes.

    Attributes:
        cause: why.
        event: of the trace.
        was_survived: whether the program went on to allocate more.
        requested_bytes: what was asked for.
        device_free_bytes: what the device had free.
        reserved_bytes, allocated_bytes: of the allocator.
        free_reserved_bytes: reserved and not allocated.
        largest_free_bytes: the largest piece of it.
        leaked_bytes: what grew from step to step.
        others_bytes: of the device, neither the allocator's nor free nor the driver's context; None
            where the device's size is not known.
        total_bytes: of the device; None where it is not known.
    """

    cause: Cause
    event: int
    was_survived: bool
    requested_bytes: int
    device_free_bytes: int
    reserved_bytes: int
    allocated_bytes: int
    free_reserved_bytes: int
    largest_free_bytes: int
    leaked_bytes: int
    others_bytes: int | None
    total_bytes: int | None

    @property
    def missing_bytes(self) -> int:
        """By how much the device was too full for it."""
        return self.requested_bytes - self.device_free_bytes


def find_shortage(
    request: tuple[int, int, int],
    replay: Replay,
    lay: Fragmentation,
    growth: tuple[Growth, ...],
    totals: DeviceTotals | None,
) -> Shortage:
    """Why a request failed: `request` is (event, bytes asked for, bytes the device had free)."""
    event, requested, free = request
    blocks = replay.blocks
    free_reserved = lay.reserved_bytes - lay.allocated_bytes
    leaked = sum(_live_bytes(site, replay, event) for site in growth)
    others = None
    if totals is not None and totals.total_bytes:
        known = lay.reserved_bytes + totals.context_bytes
        others = max(totals.total_bytes - free - known, 0)
    shortage = Shortage(
        cause=Cause.TOO_BIG,
        event=event,
        was_survived=bool((blocks.birth > event).any()),
        requested_bytes=requested,
        device_free_bytes=free,
        reserved_bytes=lay.reserved_bytes,
        allocated_bytes=lay.allocated_bytes,
        free_reserved_bytes=free_reserved,
        largest_free_bytes=lay.largest_free_bytes,
        leaked_bytes=leaked,
        others_bytes=others,
        total_bytes=None if totals is None else totals.total_bytes,
    )
    return _with_cause(shortage)


def _live_bytes(growth: Growth, replay: Replay, event: int) -> int:
    blocks = replay.blocks
    numbers = np.array(growth.blocks, dtype=np.int64)
    return int(blocks.size_bytes[numbers[blocks.is_live(event)[numbers]]].sum())


def _with_cause(shortage: Shortage) -> Shortage:
    missing, total = shortage.missing_bytes, shortage.total_bytes
    if (
        shortage.others_bytes is not None
        and total
        and shortage.others_bytes >= max(missing, int(_OTHERS_FRAC * total))
    ):
        return replace(shortage, cause=Cause.OTHERS)
    if shortage.leaked_bytes >= missing > 0:
        return replace(shortage, cause=Cause.LEAKED)
    if shortage.free_reserved_bytes + shortage.device_free_bytes >= shortage.requested_bytes:
        return replace(shortage, cause=Cause.FRAGMENTED)
    if shortage.requested_bytes >= _SPIKE_FRAC * (
        shortage.allocated_bytes + shortage.requested_bytes
    ):
        return replace(shortage, cause=Cause.SPIKE)
    return shortage
