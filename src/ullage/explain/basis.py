"""How much of an answer was assumed: the basis of a run, for the allocator's bytes and for the
whole device.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ullage.trace.model import Record

if TYPE_CHECKING:
    from ullage.gpus.catalog import Gpu


class BasisKind(enum.Enum):
    """EXACT: nothing was assumed. ASSUMED: see the list. MEASURED: on a real GPU."""

    EXACT = "exact"
    ASSUMED = "assumed"
    MEASURED = "measured"


@dataclass(frozen=True, slots=True)
class Assumption:
    """One thing that was assumed: where, how often, and how many bytes hang on it."""

    what: str
    where: str
    count: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Basis:
    """What an answer rests on."""

    kind: BasisKind
    assumptions: tuple[Assumption, ...]


def allocator_basis(records: Sequence[Record]) -> Basis:
    """What the allocator's bytes rest on, over all processes; the same assumption at the same place
    is one entry.
    """
    return _basis(assumption for record in records for assumption in _assumptions(record))


def device_basis(gpu: Gpu) -> Basis:
    """What the bytes outside the allocator rest on: the figures of the catalogue that no source
    gives exactly.
    """
    assumptions = []
    if gpu.context_low_bytes != gpu.context_high_bytes:
        span = gpu.context_high_bytes - gpu.context_low_bytes
        assumptions.append(Assumption(f"driver context on {gpu.slug}", "", 1, span))
    if not gpu.is_total_exact:
        span = gpu.total_high_bytes - gpu.total_low_bytes
        assumptions.append(Assumption(f"memory that CUDA reports for {gpu.slug}", "", 1, span))
    return _basis(assumptions)


def _assumptions(record: Record) -> Iterable[Assumption]:
    for shape in record.shapes:
        yield Assumption(
            f"{shape.what}: {shape.assumption}", shape.where, shape.count, shape.size_bytes
        )
    for sizes in record.assumed:
        yield Assumption(sizes.what, "", sizes.count, sizes.high_bytes - sizes.low_bytes)
    for read in record.reads:
        yield Assumption(f"{read.what}, answered as zeros", read.where, read.count, read.size_bytes)
    for name, count in record.refused:
        yield Assumption(f"{name} answered with 'not supported'", "", count, 0)
    if record.num_not_initialised:
        # Values on the host alone: no byte of the device hangs on them, unless the program asks.
        what = "random initialisation of weights on the CPU left out"
        yield Assumption(what, "", record.num_not_initialised, 0)


def _basis(assumptions: Iterable[Assumption]) -> Basis:
    merged: dict[tuple[str, str], Assumption] = {}
    for new in assumptions:
        known = merged.get((new.what, new.where))
        if known is not None:
            size = max(known.size_bytes, new.size_bytes)
            new = Assumption(new.what, new.where, known.count + new.count, size)
        merged[new.what, new.where] = new
    kind = BasisKind.ASSUMED if merged else BasisKind.EXACT
    return Basis(kind, tuple(merged.values()))
