"""One device of one process explained: who owned its peak, and what is left of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ullage.explain.moments.growth import has_no_end, live_after, num_done, step_growth
from ullage.explain.moments.ledger import Ledger, balance
from ullage.explain.moments.peak import Ownership, own_at, peak_position
from ullage.explain.moments.phases import Regions, find_regions
from ullage.explain.moments.steps import EvaluationPeak, StepPeak, counted_steps, peak_per_step
from ullage.explain.owners.modules import (
    ModuleOwners,
    ModuleShare,
    attribute_modules,
    share_by_module,
)
from ullage.explain.owners.ownership import attribute_record
from ullage.explain.reserved import Reserved, find_reserved
from ullage.explain.verdict import Headroom, find_headroom
from ullage.trace.growth import LEAST_BYTES
from ullage.trace.lifetime import Lifetimes, find_lifetimes, live_at
from ullage.trace.model import DeviceTotals, OutOfMemory, Record, UInt8Array
from ullage.trace.timeline import Level, Timeline, level_at, trace_levels
from ullage.units import format_bytes

if TYPE_CHECKING:
    from ullage.gpus.catalog import Gpu


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """One device as one process used it.

    Attributes:
        pid: of the process.
        rank: of the process; None where it has none.
        at_peak: who owned what was allocated when that was most.
        modules_at_peak: the same by module.
        oom: what ended the process there; None where nothing did.
        ledger: of the same moment as `at_peak`, or of `oom`.
        modules: what is allocated at the moment of the ledger, by module.
        evaluations: the peaks of evaluations between steps.
        growth: by how many bytes more is live after each step than after the one before; 0: by
            none; None: there are too few steps of the same work.
    """

    pid: int
    rank: int | None
    gpu: Gpu
    is_unlimited: bool
    totals: DeviceTotals
    reserved: Reserved
    headroom: Headroom
    at_peak: Ownership
    modules_at_peak: tuple[ModuleShare, ...]
    oom: OutOfMemory | None
    ledger: Ledger
    modules: tuple[ModuleShare, ...]
    steps: tuple[StepPeak, ...]
    evaluations: tuple[EvaluationPeak, ...]
    growth: float | None

    @property
    def full_after_steps(self) -> int | None:
        """How many steps more it takes until the device is full; None: it is not filled."""
        if not self.growth or self.is_unlimited:
            return None
        return max(0, round(self.headroom.middle_bytes / self.growth))

    @property
    def growth_text(self) -> str:
        """The growth in the words of `describe_growth`."""
        return describe_growth(self.growth, self.full_after_steps)

    @property
    def budget_bytes(self) -> int | None:
        """What may be used of the device, where that is less than it has; None: all of it."""
        has_less = self.gpu.total_bytes < self.totals.total_bytes
        return self.gpu.total_bytes if has_less and not self.is_unlimited else None

    @property
    def headroom_bytes(self) -> int:
        """What the peak leaves of the device: total - `peak_used_bytes`; negative: that much is
        missing.
        """
        return self.headroom.headroom_bytes

    @property
    def peak_used_bytes(self) -> int:
        """The most of the device that was in use: reserved + context + beside, at upper ends."""
        beside = self.gpu.context_high_bytes + self.totals.beside_bytes
        return self.reserved.answered_bytes + beside


def describe_growth(step_bytes: float | None, full_after_steps: int | None) -> str:
    """A growth in words; empty where there is none that anybody meets."""
    if step_bytes is None or step_bytes < LEAST_BYTES:
        return ""
    full = "" if full_after_steps is None else f": full after about {full_after_steps:,} more"
    return f"grows by {format_bytes(round(step_bytes))} a step{full}"


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
        reserved = find_reserved(record, totals)
        timeline = _trace(record, totals, lifetimes)
        highest = _highest(timeline, totals)
        moment = highest if own_oom is None else level_at(timeline, own_oom.position)
        at_peak = _owners_at(highest, totals, allocations)
        owners = at_peak if own_oom is None else _owners_at(moment, totals, allocations)
        steps, evaluations = peak_per_step(timeline, record.marks, regions)
        if not len(record.events) and record.measured is not None:
            steps = counted_steps(record.measured)
        reports.append(
            DeviceReport(
                pid=record.pid,
                rank=record.rank,
                gpu=gpu,
                is_unlimited=is_unlimited,
                totals=totals,
                reserved=reserved,
                headroom=find_headroom(gpu, reserved, totals),
                at_peak=at_peak,
                modules_at_peak=_share_by_module(allocations, totals.index, at_peak.position),
                oom=own_oom,
                ledger=_find_ledger(
                    owners, moment.reserved_bytes, totals, gpu, is_out_of_memory=own_oom is not None
                ),
                modules=_share_by_module(allocations, totals.index, owners.position),
                steps=steps,
                evaluations=evaluations,
                growth=_find_growth(record, totals.index, allocations, steps),
            )
        )
    return tuple(reports)


def _find_growth(
    record: Record, device: int, allocations: _Allocations, steps: Sequence[StepPeak]
) -> float | None:
    """By how many bytes more is live after each step than after the one before."""
    whole = [step for step in steps if step.is_complete]
    ends = np.array([step.end for step in whole if step.end is not None], dtype=np.int64)
    if len(ends) < len(whole):  # by counters alone the peaks are known
        peaks = np.array([step.peak.allocated_bytes for step in whole])
        return step_growth(steps, peaks, np.array([step.index for step in whole]))
    lives = allocations.lifetimes
    own = (lives.device == device) & has_no_end(allocations.categories)
    columns = (lives.birth[own], lives.death[own], lives.size_bytes[own])
    return step_growth(steps, live_after(*columns, ends), num_done(record.requests, ends))


def _share_by_module(
    allocations: _Allocations, device: int, position: int
) -> tuple[ModuleShare, ...]:
    lives = allocations.lifetimes
    live = live_at(lives, position) & (lives.device == device)
    return share_by_module(allocations.modules, live, lives.size_bytes)


def _trace(record: Record, totals: DeviceTotals, lifetimes: Lifetimes) -> Timeline:
    """The levels of one device, as in the log."""
    was_there = (lifetimes.birth == record.first_position) & (lifetimes.device == totals.index)
    base = int(lifetimes.size_bytes[was_there].sum())
    return trace_levels(record.events, totals.index, record.first_position, base)


def _find_ledger(
    owners: Ownership,
    reserved_bytes: int,
    totals: DeviceTotals,
    gpu: Gpu,
    *,
    is_out_of_memory: bool,
) -> Ledger:
    """The ledger of the moment when the most was allocated, or when memory ran out."""
    return balance(
        owners,
        reserved_bytes=reserved_bytes,
        # What ran out had the phantom's own context; what might run out has the largest.
        context_bytes=totals.context_bytes if is_out_of_memory else gpu.context_high_bytes,
        non_torch_bytes=totals.non_torch_bytes,
        others_bytes=totals.others_bytes,
        total_bytes=gpu.total_bytes,
    )


def _highest(timeline: Timeline, totals: DeviceTotals) -> Level:
    """The levels when the most was allocated. The log of a capped record may have missed that
    moment, the counters have not: no less was reserved then than was allocated.
    """
    level = level_at(timeline, peak_position(timeline))
    allocated_bytes = totals.peak_allocated_bytes
    return Level(level.position, allocated_bytes, max(level.reserved_bytes, allocated_bytes))


def _owners_at(level: Level, totals: DeviceTotals, allocations: _Allocations) -> Ownership:
    return own_at(
        allocations.lifetimes,
        allocations.categories,
        totals.index,
        level.position,
        level.allocated_bytes,
    )
