"""How much of an answer was assumed: the basis of a run, for the allocator's bytes and for the
whole device.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from ullage.explain.reserved import Reserved, find_reserved
from ullage.ground.units import format_bytes
from ullage.log.assumptions import Assumption, AssumptionKind
from ullage.log.model import Record

if TYPE_CHECKING:
    from ullage.facts.gpus.catalog import Gpu


# What depends on a replay: in words, how often, and both ends in bytes.
_Ends: TypeAlias = tuple[str, int, int, int]


class BasisKind(enum.Enum):
    """EXACT: no byte depends on an assumption. ASSUMED: see the list. MEASURED: on a real GPU."""

    EXACT = "exact"
    ASSUMED = "assumed"
    MEASURED = "measured"


@dataclass(frozen=True, slots=True)
class Basis:
    """The basis of an answer."""

    kind: BasisKind
    assumptions: tuple[Assumption, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The assumptions that bytes depend on, in alphabetical order, without sizes."""
        rows = (row for row in self.assumptions if not row.is_note)
        return tuple(sorted({row.what.partition(";")[0] for row in rows}))


def allocator_basis(records: Sequence[Record], unplayed: Sequence[Assumption] = ()) -> Basis:
    """The basis of the allocator's bytes, over all processes."""
    order = [*AssumptionKind]
    by_record = (
        sorted((*record.basis, *_replayed(record)), key=lambda row: order.index(row.kind))
        for record in records
    )
    return _basis([*chain.from_iterable(by_record), *unplayed], records)


def device_basis(gpu: Gpu, records: Sequence[Record] = ()) -> Basis:
    """The basis of the bytes outside the allocator: the figures of the catalogue that no source
    gives exactly, and what the driver and libraries hold beside the context.
    """
    figures = [
        (f"driver context on {gpu.slug}", gpu.context_low_bytes, gpu.context_high_bytes),
        (f"memory that CUDA reports for {gpu.slug}", gpu.total_low_bytes, gpu.total_high_bytes),
    ]
    is_exact = (gpu.context_low_bytes == gpu.context_high_bytes, gpu.is_total_exact)
    catalogued = [
        Assumption(AssumptionKind.OUTSIDE, what, "", 1, low, high, high)
        for (what, low, high), exact in zip(figures, is_exact, strict=True)
        if not exact
    ]
    outside = (row for record in records for totals in record.devices for row in totals.outside)
    return _basis([*catalogued, *outside], records)


def _replayed(record: Record) -> Iterator[Assumption]:
    """How much depends on what replays of the trace with other settings come to."""
    for totals in record.devices:
        reserved = find_reserved(record, totals)
        rows = [row for row in _ends(reserved) if row[2] != row[3]]
        work = reserved.completion
        if work.allocated_low_bytes is not None:  # said even where the peak has none of them
            what = "allocated for collectives that are not waited for: done at once, to done when "
            what += "the host waits or a stream's queue is full"
            ends = (work.allocated_low_bytes, reserved.allocated_bytes)
            rows.insert(0, (what, work.num_kept, *ends))
        for what, count, low, high in rows:
            yield Assumption(AssumptionKind.REPLAY, what, "", count, low, high, high)


def _ends(reserved: Reserved) -> Iterator[_Ends]:
    work = reserved.completion
    what = "reserved with asynchronous work done at once, to done when the host waits for it"
    if work.held_bytes is None:
        what += "; the lower end was not measured, as no snapshot was kept"
    else:
        what += f"; {format_bytes(work.held_bytes)} held back at the peak"
    yield (what, work.num_held or 1, work.low_bytes, work.high_bytes)
    timing, warm = reserved.tuning, "with Inductor's cache warm, to cold as in this run"
    num_timed = timing.num_blocks or 1
    yield (f"allocated {warm}", num_timed, timing.allocated_low_bytes, reserved.allocated_bytes)
    if timing.num_blocks is None or timing.largest_bytes is None:
        warm += "; the warm end was not measured, as no snapshot was kept"
    else:
        warm += (
            f"; the timing of kernels allocated {timing.num_blocks:,} blocks of up to "
            f"{format_bytes(timing.largest_bytes)}"
        )
    yield (f"reserved {warm}", num_timed, timing.low_bytes, timing.high_bytes)
    order = reserved.addresses
    orders = "with addresses in the order of Linux's driver, or of Windows'"
    yield (f"allocated {orders}", 1, order.allocated_low_bytes, order.allocated_high_bytes)
    yield (f"reserved {orders}", 1, order.low_bytes, order.high_bytes)
    # Workspaces: what the entries of each kind have alone.
    sizes, num = reserved.workspaces, reserved.workspaces.num_blocks
    bounds = f"with the {num:,} workspaces of libraries at their lower, to their upper bounds"
    yield (f"allocated {bounds}", num, sizes.allocated_low_bytes, sizes.allocated_high_bytes)
    yield (f"reserved {bounds}", num, sizes.reserved_low_bytes, sizes.reserved_high_bytes)


def _basis(assumptions: Iterable[Assumption], records: Sequence[Record]) -> Basis:
    """The same assumption at the same place is one entry."""
    merged: dict[tuple[str, str], Assumption] = {}
    for new in assumptions:
        known = merged.get((new.what, new.where))
        if known is not None:
            wider = max(known, new, key=lambda assumption: assumption.size_bytes)
            new = replace(wider, count=known.count + new.count)
        merged[new.what, new.where] = new
    kind = BasisKind.ASSUMED
    if records and all(record.measured is not None for record in records):
        kind = BasisKind.MEASURED
    elif all(assumption.is_note for assumption in merged.values()):
        kind = BasisKind.EXACT
    return Basis(kind, tuple(merged.values()))
