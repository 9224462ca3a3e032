"""How much of an answer was assumed: the basis of a run, for the allocator's bytes and for the
whole device.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from ullage.explain.reserved import AddressEnds, Completion, Tuning, Workspaces, find_reserved
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
        reserved, allocated = find_reserved(record, totals), totals.peak_allocated_bytes
        for what, count, low, high in (
            *_completion(reserved.completion, allocated),
            *_tuning(reserved.tuning, allocated),
            *_address_order(reserved.addresses),
            *_workspaces(reserved.workspaces),
        ):
            yield Assumption(AssumptionKind.REPLAY, what, "", count, low, high, high)


def _completion(ends: Completion, peak_allocated_bytes: int) -> Iterator[_Ends]:
    """How much depends on when asynchronous work ends."""
    if ends.allocated_low_bytes is not None:
        what = "allocated for collectives that are not waited for: done at once, to done when the"
        what += " host waits or a stream's queue is full"
        yield (what, ends.num_kept, ends.allocated_low_bytes, peak_allocated_bytes)
    if ends.low_bytes == ends.high_bytes:
        return
    what = "reserved with asynchronous work done at once, to done when the host waits for it"
    if ends.held_bytes is None:
        what += "; the lower end was not measured, as no snapshot was kept"
    else:
        what += f"; {format_bytes(ends.held_bytes)} held back at the peak"
    yield (what, ends.num_held or 1, ends.low_bytes, ends.high_bytes)


def _address_order(ends: AddressEnds) -> Iterator[_Ends]:
    """How much depends on the order in which the driver hands out addresses."""
    for what, low, high in (
        ("allocated", ends.allocated_low_bytes, ends.allocated_high_bytes),
        ("reserved", ends.low_bytes, ends.high_bytes),
    ):
        if low != high:
            orders = "addresses in the order of Linux's driver, or of Windows'"
            yield (f"{what} with {orders}", 1, low, high)


def _workspaces(ends: Workspaces) -> Iterator[_Ends]:
    """How much depends on the sizes of workspaces, which the entries of each kind have alone."""
    with_bounds = f"with the {ends.num_blocks:,} workspaces of libraries at their lower, to their"
    for what, low, high in (
        ("allocated", ends.allocated_low_bytes, ends.allocated_high_bytes),
        ("reserved", ends.reserved_low_bytes, ends.reserved_high_bytes),
    ):
        if low != high:
            yield (f"{what} {with_bounds} upper bounds", ends.num_blocks, low, high)


def _tuning(ends: Tuning, allocated_bytes: int) -> Iterator[_Ends]:
    """How much depends on whether Inductor times kernels, or its cache knows the best settings."""
    if ends.allocated_low_bytes < allocated_bytes:
        what = "allocated with Inductor's cache warm, to cold as in this run"
        yield (what, ends.num_blocks or 1, ends.allocated_low_bytes, allocated_bytes)
    if ends.low_bytes == ends.high_bytes:
        return
    what = "reserved with Inductor's cache warm, to cold as in this run"
    if ends.num_blocks is None or ends.largest_bytes is None:
        what += "; the warm end was not measured, as no snapshot was kept"
    else:
        what += (
            f"; the timing of kernels allocated {ends.num_blocks:,} blocks of up to "
            f"{format_bytes(ends.largest_bytes)}"
        )
    yield (what, ends.num_blocks or 1, ends.low_bytes, ends.high_bytes)


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
