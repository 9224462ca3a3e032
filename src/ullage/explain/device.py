"""One device of one process explained: who owned its peak, and what is left of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ullage.explain.completion import Completion, find_completion
from ullage.explain.ledger import Ledger, balance
from ullage.explain.modules import (
    ModuleOwners,
    ModuleShare,
    attribute_modules,
    share_by_module,
)
from ullage.explain.ownership import attribute_record
from ullage.explain.peak import Ownership, own_at, peak_position, peak_reserved_position
from ullage.explain.phases import Regions, find_regions
from ullage.explain.steps import StepPeak, peak_per_step
from ullage.explain.verdict import Headroom, find_headroom
from ullage.trace.lifetime import Lifetimes, find_lifetimes, live_at
from ullage.trace.model import DeviceTotals, OutOfMemory, Record, UInt8Array
from ullage.trace.timeline import level_at, trace_levels

if TYPE_CHECKING:
    from ullage.gpus.catalog import Gpu


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """One device as one process used it; `oom` ended the process there, and is then the moment of
    the ledger.
    """

    rank: int | None
    gpu: Gpu
    is_unlimited: bool
    totals: DeviceTotals
    completion: Completion
    headroom: Headroom
    at_peak: Ownership
    modules_at_peak: tuple[ModuleShare, ...]
    oom: OutOfMemory | None
    ledger: Ledger
    steps: tuple[StepPeak, ...]

    @property
    def headroom_bytes(self) -> int:
        """What the peak leaves of the device: total - `peak_used_bytes`; negative: that much is
        missing.
        """
        return self.headroom.headroom_bytes

    @property
    def peak_used_bytes(self) -> int:
        """The most of the device that was in use: reserved + context + non-torch, at upper ends."""
        return (
            self.completion.high_bytes + self.gpu.context_high_bytes + self.totals.non_torch_bytes
        )


@dataclass(frozen=True, slots=True)
class _Allocations:
    """A record's allocations, each with its owner (an index into CATEGORIES)."""

    lifetimes: Lifetimes
    categories: UInt8Array
    modules: ModuleOwners
    regions: Regions


def explain_devices(
    record: Record, oom: OutOfMemory | None, *, gpu: Gpu, is_unlimited: bool
) -> tuple[DeviceReport, ...]:
    """The devices that a process touched; `oom` is what ended it."""
    lifetimes = find_lifetimes(record.events, record.first_position)
    regions = find_regions(record.marks, record.first_position)
    categories = attribute_record(record, lifetimes, regions)
    modules = attribute_modules(lifetimes, record)
    allocations = _Allocations(lifetimes, categories, modules, regions)
    reports = []
    touched = [t for t in record.devices if t.peak_reserved_bytes or t.non_torch_bytes]
    for totals in touched or record.devices[:1]:
        own_oom = oom if oom is not None and oom.device == totals.index else None
        completion = find_completion(record, totals)
        at_peak, ledger, steps = _explain_memory(record, totals, own_oom, allocations, gpu)
        reports.append(
            DeviceReport(
                rank=record.rank,
                gpu=gpu,
                is_unlimited=is_unlimited,
                totals=totals,
                completion=completion,
                headroom=find_headroom(gpu, completion, totals, record.assumed),
                at_peak=at_peak,
                modules_at_peak=_share_by_module(allocations, totals.index, at_peak.position),
                oom=own_oom,
                ledger=ledger,
                steps=steps,
            )
        )
    return tuple(reports)


def _share_by_module(
    allocations: _Allocations, device: int, position: int
) -> tuple[ModuleShare, ...]:
    lives = allocations.lifetimes
    live = live_at(lives, position) & (lives.device == device)
    return share_by_module(allocations.modules, live, lives.size_bytes)


def _explain_memory(
    record: Record,
    totals: DeviceTotals,
    oom: OutOfMemory | None,
    allocations: _Allocations,
    gpu: Gpu,
) -> tuple[Ownership, Ledger, tuple[StepPeak, ...]]:
    """What the log says about one device."""
    lives, categories, device = allocations.lifetimes, allocations.categories, totals.index
    was_there = (lives.birth == record.first_position) & (lives.device == device)
    base = int(lives.size_bytes[was_there].sum())
    timeline = trace_levels(record.events, device, record.first_position, base)
    moment = level_at(timeline, peak_reserved_position(timeline) if oom is None else oom.position)
    at_peak = own_at(
        lives, categories, device, peak_position(timeline), totals.peak_allocated_bytes
    )
    ledger = balance(
        own_at(lives, categories, device, moment.position, moment.allocated_bytes),
        # The log of a capped record may have missed the highest moment; the counters have not.
        reserved_bytes=totals.peak_reserved_bytes if oom is None else moment.reserved_bytes,
        # What ran out had the phantom's own context; what might run out has the largest.
        context_bytes=gpu.context_high_bytes if oom is None else totals.context_bytes,
        non_torch_bytes=totals.non_torch_bytes,
        total_bytes=gpu.total_bytes,
    )
    return at_peak, ledger, peak_per_step(timeline, record.marks, allocations.regions)
