"""Why a device ran out of memory: the arithmetic, and the verdict.

What is asked about a failed request, in this order:
    another process   does it, or a library, hold what is missing, beside the allocator?
    leaked            would it fit if what grows from step to step were not there?
    fragmented        is as much free, but in pieces that the allocator could have joined?
    limited           did the device have it, and a limit of the process's own was reached?
    single spike      is this one request half of all that would be in use, or more, and not a
                      gradient, whose size is that of what the forward pass made?
    too big           none of these: the program needs more than there is
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

import numpy as np

from ullage.explain.fragmentation import Fragmentation
from ullage.explain.moments.growth import Growth
from ullage.ground.protocol.plain import figure
from ullage.log.model import DeviceTotals
from ullage.log.replay import Replay
from ullage.log.rules import PAGE_BYTES, segment_bytes

_SPIKE_FRAC = 0.5
_OTHERS_FRAC = 0.05


class Cause(enum.Enum):
    """Why."""

    OTHERS = "another process or library holds the memory"
    LEAKED = "leaked"
    FRAGMENTED = "fragmented"
    LIMITED = "a limit of the process"
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

    @figure
    def missing_bytes(self) -> int:
        """By how much the device was too full for it; of a limit of the process, by how much at
        most its own memory was.
        """
        if self.is_limited:
            return self.requested_bytes - self.free_reserved_bytes
        missing = self.requested_bytes - self.device_free_bytes
        # A small request needs a whole segment.
        return (
            missing
            if missing > 0
            else segment_bytes(self.requested_bytes) + missing - self.requested_bytes
        )

    @property
    def is_limited(self) -> bool:
        """True if the device had it: the process may not have all of its memory
        (torch.cuda.set_per_process_memory_fraction).
        """
        return self.device_free_bytes >= segment_bytes(self.requested_bytes)


def find_shortage(
    request: tuple[int, int, int],
    replay: Replay,
    lay: Fragmentation,
    growth: tuple[Growth, ...],
    totals: DeviceTotals | None,
    *,
    is_expandable: bool,
    is_backward: bool,
) -> Shortage:
    """Why a request failed.

    Args:
        request: (event, bytes asked for, bytes the device had free).
        lay: how the reserved memory lay then.
        is_expandable: whether segments were expandable, so that no free memory was in pieces but
            that of other pools.
        is_backward: whether a backward pass asked for it.
    """
    event, requested, free = request
    blocks = replay.blocks
    free_reserved = lay.reserved_bytes - lay.allocated_bytes
    # Under a limit what one line has made may be what the limit is for.
    is_limited = free >= segment_bytes(requested)
    leaks = [site for site in growth if not is_limited or site.unit != "call"]
    numbers = np.array([number for site in leaks for number in site.blocks], dtype=np.int64)
    leaked = int(blocks.size_bytes[numbers[blocks.is_live(event)[numbers]]].sum())
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
    return _with_cause(shortage, is_expandable=is_expandable, is_backward=is_backward)


def _with_cause(shortage: Shortage, *, is_expandable: bool, is_backward: bool) -> Shortage:
    missing, total = shortage.missing_bytes, shortage.total_bytes
    if (
        not shortage.is_limited
        and shortage.others_bytes is not None
        and total
        and shortage.others_bytes >= max(missing, int(_OTHERS_FRAC * total))
    ):
        return replace(shortage, cause=Cause.OTHERS)
    if shortage.leaked_bytes >= missing > 0:
        return replace(shortage, cause=Cause.LEAKED)
    # Of a limit it is not known how much of it was left: what is reserved has to be enough.
    free = shortage.free_reserved_bytes
    free += 0 if shortage.is_limited else shortage.device_free_bytes // PAGE_BYTES * PAGE_BYTES
    if free >= segment_bytes(shortage.requested_bytes) and not is_expandable:
        return replace(shortage, cause=Cause.FRAGMENTED)
    if shortage.is_limited:
        return replace(shortage, cause=Cause.LIMITED)
    in_use = shortage.allocated_bytes + shortage.requested_bytes
    if shortage.requested_bytes >= _SPIKE_FRAC * in_use and not is_backward:
        return replace(shortage, cause=Cause.SPIKE)
    return shortage
