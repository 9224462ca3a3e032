"""How much of an answer was assumed: the basis of a run, for the allocator's bytes and for the
whole device.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Annotated

from ullage.explain.addresses import AddressEnds
from ullage.explain.completion import Completion
from ullage.explain.reserved import find_reserved
from ullage.explain.tuning import Tuning
from ullage.explain.workspaces import Workspaces
from ullage.protocol.plain import As, Mark
from ullage.trace.model import Record
from ullage.units import format_bytes

if TYPE_CHECKING:
    from ullage.gpus.catalog import Gpu


class BasisKind(enum.Enum):
    """EXACT: no byte depends on an assumption. ASSUMED: see the list. MEASURED: on a real GPU."""

    EXACT = "exact"
    ASSUMED = "assumed"
    MEASURED = "measured"


@dataclass(frozen=True, slots=True)
class Assumption:
    """One thing that was assumed: where, how often, and how many bytes depend on it.

    Attributes:
        what: in words.
        where: in the user's code; empty where it has no such place.
        count: how often.
        size_bytes: of an interval its width, of a value that was read its size.
        low_bytes: the lower end of an assumed size; None where no size was assumed.
        high_bytes: its upper end.
        is_note: whether no byte depends on it: the answer stays exact.
    """

    what: str
    where: str
    count: int
    size_bytes: Annotated[int, As("bytes")]
    low_bytes: int | None = None
    high_bytes: int | None = None
    is_note: Annotated[bool, Mark.NO_KEY] = False


@dataclass(frozen=True, slots=True)
class Basis:
    """The basis of an answer."""

    kind: BasisKind
    assumptions: tuple[Assumption, ...]


def allocator_basis(records: Sequence[Record]) -> Basis:
    """The basis of the allocator's bytes, over all processes; the same assumption at the same place
    is one entry.
    """
    basis = _basis(assumption for record in records for assumption in _assumptions(record))
    return replace(basis, kind=BasisKind.MEASURED) if _are_measured(records) else basis


def device_basis(gpu: Gpu, records: Sequence[Record] = ()) -> Basis:
    """The basis of the bytes outside the allocator: the figures of the catalogue that no source
    gives exactly, and what the driver and libraries hold beside the context.
    """
    assumptions = []
    if gpu.context_low_bytes != gpu.context_high_bytes:
        ends = (gpu.context_low_bytes, gpu.context_high_bytes)
        assumptions.append(_assumed_size(f"driver context on {gpu.slug}", 1, *ends))
    if not gpu.is_total_exact:
        ends = (gpu.total_low_bytes, gpu.total_high_bytes)
        assumptions.append(_assumed_size(f"memory that CUDA reports for {gpu.slug}", 1, *ends))
    for outside in (
        outside_range for r in records for totals in r.devices for outside_range in totals.outside
    ):
        ends = (outside.low_bytes, outside.high_bytes)
        assumptions.append(_assumed_size(outside.what, outside.count, *ends))
    basis = _basis(assumptions)
    return replace(basis, kind=BasisKind.MEASURED) if _are_measured(records) else basis


def _are_measured(records: Sequence[Record]) -> bool:
    return bool(records) and all(record.measured is not None for record in records)


def _assumptions(record: Record) -> Iterable[Assumption]:
    for shape in record.shapes:
        yield Assumption(
            f"{shape.what}: {shape.assumption}", shape.where, shape.count, shape.size_bytes
        )
    at_once = _num_at_once(record)
    if at_once > 1:
        yield Assumption("in which order requests that run at once take memory", "", at_once, 0)
    if (
        record.measured is None
        and not len(record.events)
        and any(totals.peak_allocated_bytes for totals in record.devices)
    ):
        yield Assumption("who held what in a process that was killed", "", 1, 0)
    for sizes in record.assumed:
        yield _assumed_size(sizes.what, sizes.count, sizes.low_bytes, sizes.high_bytes)
    for totals in record.devices:
        reserved = find_reserved(record, totals)
        yield from _completion(reserved.completion, totals.peak_allocated_bytes)
        yield from _tuning(reserved.tuning, totals.peak_allocated_bytes)
        yield from _address_order(reserved.addresses)
        yield from _workspaces(reserved.workspaces)
    for read in record.reads:
        yield Assumption(f"{read.what}, {read.answer}", read.where, read.count, read.size_bytes)
    for name, count in record.refused:
        yield Assumption(f"{name} answered with 'not supported'", "", count, 0)
    if record.num_not_initialised:
        # Values on the host alone: the sizes of what is built from them are what they are.
        what = "random initialisation of weights on the CPU left out"
        yield Assumption(what, "", record.num_not_initialised, 0, is_note=True)


def _num_at_once(record: Record) -> int:
    """The most requests that ran at the same time."""
    changes = sorted(
        change for request in record.requests for change in ((request.begin, 1), (request.end, -1))
    )
    return max(accumulate(change for _, change in changes), default=0)


def _completion(ends: Completion, peak_allocated_bytes: int) -> Iterable[Assumption]:
    """How much depends on when asynchronous work ends."""
    if ends.allocated_low_bytes is not None:
        what = "allocated for collectives that are not waited for: done at once, to done when the"
        what += " host waits or a stream's queue is full"
        yield _assumed_size(what, ends.num_kept, ends.allocated_low_bytes, peak_allocated_bytes)
    if ends.low_bytes == ends.high_bytes:
        return
    what = "reserved with asynchronous work done at once, to done when the host waits for it"
    if ends.held_bytes is None:
        what += "; the lower end was not measured, as no snapshot was kept"
    else:
        what += f"; {format_bytes(ends.held_bytes)} held back at the peak"
    yield _assumed_size(what, ends.num_held or 1, ends.low_bytes, ends.high_bytes)


def _address_order(ends: AddressEnds) -> Iterable[Assumption]:
    """How much depends on the order in which the driver hands out addresses."""
    for what, low, high in (
        ("allocated", ends.allocated_low_bytes, ends.allocated_high_bytes),
        ("reserved", ends.low_bytes, ends.high_bytes),
    ):
        if low != high:
            orders = "addresses in the order of Linux's driver, or of Windows'"
            yield _assumed_size(f"{what} with {orders}", 1, low, high)


def _workspaces(ends: Workspaces) -> Iterable[Assumption]:
    """How much depends on the sizes of workspaces, which the entries of each kind have alone."""
    with_bounds = f"with the {ends.num_blocks:,} workspaces of libraries at their lower, to their"
    for what, low, high in (
        ("allocated", ends.allocated_low_bytes, ends.allocated_high_bytes),
        ("reserved", ends.reserved_low_bytes, ends.reserved_high_bytes),
    ):
        if low != high:
            yield _assumed_size(f"{what} {with_bounds} upper bounds", ends.num_blocks, low, high)


def _tuning(ends: Tuning, allocated_bytes: int) -> Iterable[Assumption]:
    """How much depends on whether Inductor times kernels, or its cache knows the best settings."""
    if ends.allocated_low_bytes < allocated_bytes:
        what = "allocated with Inductor's cache warm, to cold as in this run"
        yield _assumed_size(what, ends.num_blocks or 1, ends.allocated_low_bytes, allocated_bytes)
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
    yield _assumed_size(what, ends.num_blocks or 1, ends.low_bytes, ends.high_bytes)


def _assumed_size(what: str, count: int, low_bytes: int, high_bytes: int) -> Assumption:
    return Assumption(what, "", count, high_bytes - low_bytes, low_bytes, high_bytes)


def _basis(assumptions: Iterable[Assumption]) -> Basis:
    merged: dict[tuple[str, str], Assumption] = {}
    for new in assumptions:
        known = merged.get((new.what, new.where))
        if known is not None:
            wider = max(known, new, key=lambda assumption: assumption.size_bytes)
            new = replace(wider, count=known.count + new.count)
        merged[new.what, new.where] = new
    is_exact = all(assumption.is_note for assumption in merged.values())
    kind = BasisKind.EXACT if is_exact else BasisKind.ASSUMED
    return Basis(kind, tuple(merged.values()))
