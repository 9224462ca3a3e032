"""The agreement of a measurement with its prediction, term by term.

terms = find_terms(before, after, by_category)   # empty unless one side is measured
terms[0].name, terms[0].is_inside
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import starmap
from typing import Annotated

from ullage.explain.compare.changes import Change, Moment
from ullage.explain.snapshot import DeviceSnapshot
from ullage.facts.gpus.catalog import find_gpu
from ullage.ground.errors import SpecError
from ullage.ground.protocol.plain import As, figure
from ullage.log.assumptions import AssumptionKind
from ullage.log.category import Category
from ullage.log.model import DeviceTotals

# At each run's own peak of allocated bytes.
_GROUPS = {
    "states": (
        Category.PARAMETER, Category.BUFFER, Category.GRADIENT, Category.OPTIMIZER_STATE,
    ),
    "activations": (Category.ACTIVATION, Category.INPUT),
    "temporaries": (Category.TEMPORARY,),
    "workspaces": (Category.WORKSPACE,),
    "communication": (Category.COMMUNICATION,),
    "other tensors": (Category.KV_CACHE, Category.UNATTRIBUTED),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Term:
    """One part of the device's memory.

    Attributes:
        name: "states", "activations", "temporaries", "workspaces", "communication", "other
            tensors", "cache", "context" or "NCCL and libraries".
        low_bytes, high_bytes: both ends of what was predicted.
        measured_bytes: None where the record does not tell.
    """

    name: Annotated[str, As("term")]
    low_bytes: Annotated[int, As("predicted_low_bytes")]
    high_bytes: Annotated[int, As("predicted_high_bytes")]
    measured_bytes: int | None

    @figure
    def is_inside(self) -> bool | None:
        """True if the measured bytes lie in the interval; None where they are not known."""
        if self.measured_bytes is None:
            return None
        return self.low_bytes <= self.measured_bytes <= self.high_bytes


def find_terms(before: Moment, after: Moment, by_category: tuple[Change, ...]) -> tuple[Term, ...]:
    """The terms; empty unless one side was predicted and the other measured, both with owners."""
    records = (before.report.record, after.report.record)
    totals = (before.device.totals, after.device.totals)
    if None in records or None in totals:
        return ()
    is_measured = [record is not None and record.measured is not None for record in records]
    if is_measured[0] == is_measured[1]:
        return ()
    sides = (before, after)
    predicted, measured = sides[::-1] if is_measured[0] else sides
    turn = -1 if is_measured[0] else 1
    sizes = {
        change.category: (change.before.size_bytes, change.after.size_bytes)[::turn]
        for change in by_category
    }
    return (*_tensor_terms(predicted, sizes), *_device_terms(predicted.device, measured.device))


def _tensor_terms(predicted: Moment, sizes: dict[Category | None, tuple[int, ...]]) -> list[Term]:
    terms = []
    for name, categories in _GROUPS.items():
        rows = [sizes[category] for category in categories if category in sizes]
        expected, actual = sum(row[0] for row in rows), sum(row[1] for row in rows)
        low, high = expected, expected
        if name == "workspaces" and predicted.report.record is not None:
            # How much smaller and larger those may be whose sizes a model answered.
            basis = predicted.report.record.basis
            answered = [row for row in basis if row.kind is AssumptionKind.WORKSPACE]
            low = max(0, expected - sum(size.less_bytes for size in answered))
            high = expected + sum(size.more_bytes for size in answered)
        terms.append(Term(name, low, high, actual))
    return terms


def _device_terms(predicted: DeviceSnapshot, measured: DeviceSnapshot) -> list[Term]:
    expected, actual = predicted.totals, measured.totals
    if expected is None or actual is None:
        return []
    cache = expected.peak_reserved_bytes - expected.peak_allocated_bytes
    low, high = _context(expected)
    beside = expected.non_torch_bytes
    return list(starmap(Term, (
        ("cache", cache, cache, actual.peak_reserved_bytes - actual.peak_allocated_bytes),
        ("context", low, high, actual.context_bytes),
        ("NCCL and libraries", beside - expected.outside_spread_bytes, beside, None),
    )))  # fmt: skip


def _context(totals: DeviceTotals) -> tuple[int, int]:
    """Both ends of the driver's context as in the catalogue."""
    try:
        gpu = find_gpu(totals.name)
    except SpecError:
        return totals.context_bytes, totals.context_bytes
    return gpu.context_low_bytes, gpu.context_high_bytes
