"""One device of one process explained: who owned its peak, and what is left of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

import numpy as np

from ullage.explain.log import Log, read_log
from ullage.explain.moments.growth import rate_of, step_growth
from ullage.explain.moments.levels import read_levels
from ullage.explain.moments.steps import EvaluationPeak, StepPeak, counted_steps, peak_per_step
from ullage.explain.owners.modules import ModuleShare, share_by_module
from ullage.explain.owners.owners import sum_by_category
from ullage.explain.owners.ownership import CATEGORIES
from ullage.explain.reserved import Reserved, find_reserved
from ullage.explain.verdict import Headroom, find_headroom
from ullage.ground.protocol.plain import As, Mark, Only, figure
from ullage.ground.units import format_bytes
from ullage.log.growth import LEAST_BYTES
from ullage.log.model import Category, DeviceTotals, OutOfMemory, Record

if TYPE_CHECKING:
    from ullage.facts.gpus.catalog import Gpu


# The use of a device's memory at one moment: the peak of allocated bytes, or when it ran out.


@dataclass(frozen=True, slots=True)
class Ownership:
    """The owners of a device's allocated bytes at a position; they sum to `allocated_bytes`.

    Whole blocks are counted, so rounding belongs to the owner of the block. Bytes that are missing
    from the log, because it was capped, are UNATTRIBUTED.
    """

    position: int
    allocated_bytes: Annotated[int, Mark.NO_KEY]
    by_category: Annotated[Mapping[Category, int], As("owners")]


@dataclass(frozen=True, slots=True)
class Ledger:
    """The bytes of a device at one moment: owners + cache + context + non-torch + others
    + free == total.

    Attributes:
        owners: the owners of the allocated bytes.
        cache_bytes: the bytes reserved by the allocator and not allocated.
        context_bytes: the driver's context: its upper bound, or its size when memory ran out.
        non_torch_bytes: the bytes that libraries allocate outside the allocator.
        others_bytes: the bytes of the run's other processes, as in `DeviceTotals`.
        total_bytes: the memory of the device.
        free_bytes: the remaining bytes; negative where the device is too small.
        modules: the allocated bytes by module.
    """

    owners: Annotated[Ownership, Mark.FLAT]
    cache_bytes: int
    context_bytes: int
    non_torch_bytes: int
    others_bytes: Annotated[int, As("other_processes_bytes")]
    total_bytes: int
    free_bytes: int
    modules: tuple[ModuleShare, ...]


def balance(
    owners: Ownership,
    modules: tuple[ModuleShare, ...],
    *,
    reserved_bytes: int,
    context_bytes: int,
    non_torch_bytes: int,
    others_bytes: int,
    total_bytes: int,
) -> Ledger:
    """Returns the ledger of a device on which the allocator reserved `reserved_bytes`."""
    return Ledger(
        owners=owners,
        modules=modules,
        cache_bytes=reserved_bytes - owners.allocated_bytes,
        context_bytes=context_bytes,
        non_torch_bytes=non_torch_bytes,
        others_bytes=others_bytes,
        total_bytes=total_bytes,
        free_bytes=total_bytes - reserved_bytes - context_bytes - non_torch_bytes - others_bytes,
    )


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
        evaluations: the peaks of evaluations between steps.
        growth: by how many bytes more is live after each step than after the one before; 0: by
            none; None: there are too few steps of the same work.
    """

    pid: Annotated[int, Mark.NO_KEY]
    rank: int | None
    gpu: Annotated[Gpu, Only("slug")]
    is_unlimited: bool
    totals: Annotated[DeviceTotals, Mark.FLAT]
    reserved: Annotated[Reserved, Mark.FLAT]
    headroom: Annotated[Headroom, Mark.FLAT]
    at_peak: Annotated[Ownership, Only("by_category")]
    modules_at_peak: Annotated[tuple[ModuleShare, ...], As("modules")]
    oom: Annotated[OutOfMemory | None, Mark.NO_KEY]
    ledger: Ledger
    steps: tuple[StepPeak, ...]
    evaluations: tuple[EvaluationPeak, ...]
    growth: Annotated[float | None, Mark.NO_KEY]

    @figure
    def total_bytes(self) -> int:
        """The memory of the device, of which a budget is a part."""
        return self.totals.total_bytes if self.budget_bytes else self.gpu.total_bytes

    @figure
    def context_ends(self) -> Annotated[Mapping[str, int], Mark.FLAT]:
        """Both bounds of the driver's context."""
        low_bytes, high_bytes = self.gpu.context_low_bytes, self.gpu.context_high_bytes
        return {"context_low_bytes": low_bytes, "context_high_bytes": high_bytes}

    @figure
    def growth_bytes_per_step(self) -> int | None:
        """The growth in whole bytes."""
        return None if self.growth is None else round(self.growth)

    @figure
    def full_after_steps(self) -> int | None:
        """The number of further steps until the device is full; None: it is not filled."""
        if not self.growth or self.is_unlimited:
            return None
        return max(0, round(self.headroom.middle_bytes / self.growth))

    @property
    def growth_text(self) -> str:
        """The growth in the words of `describe_growth`."""
        return describe_growth(self.growth, self.full_after_steps)

    @figure
    def budget_bytes(self) -> int | None:
        """The usable bytes of the device, where that is less than it has; None: all of it."""
        has_less = self.gpu.total_bytes < self.totals.total_bytes
        return self.gpu.total_bytes if has_less and not self.is_unlimited else None

    @property
    def headroom_bytes(self) -> int:
        """The bytes that the peak leaves of the device: total - `peak_used_bytes`; negative: that
        much is missing.
        """
        return self.headroom.headroom_bytes

    @figure
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


def explain_devices(
    record: Record, oom: OutOfMemory | None, *, gpu: Gpu, is_unlimited: bool
) -> tuple[DeviceReport, ...]:
    """The devices that a process touched; `oom` is what ended it."""
    log = read_log(record)
    reports = []
    touched = [t for t in record.devices if t.peak_reserved_bytes or t.non_torch_bytes]
    for totals in touched or record.devices[:1]:
        own_oom = oom if oom is not None and oom.device == totals.index else None
        reserved = find_reserved(record, totals)
        levels = read_levels(record, log.blocks, totals.index)
        # The log of a capped record may have missed its peak, the counters have not: no less was
        # reserved then than was allocated.
        peak_bytes = totals.peak_allocated_bytes
        at_peak, modules_at_peak = _own_at(log, totals.index, levels.peak_event, peak_bytes)
        owners, modules = at_peak, modules_at_peak
        reserved_bytes = max(int(levels.reserved_bytes[levels.peak_event + 1]), peak_bytes)
        if own_oom is not None:
            place = min(max(own_oom.position - record.first_position, 0), len(record.events))
            allocated_bytes = int(levels.allocated_bytes[place])
            owners, modules = _own_at(log, totals.index, place - 1, allocated_bytes)
            reserved_bytes = int(levels.reserved_bytes[place])
        steps, evaluations = peak_per_step(record, levels, log.course)
        if not len(record.events) and record.measured is not None:
            steps = counted_steps(record.measured)
            # By counters alone the peaks are known.
            whole = [step for step in steps if step.is_complete]
            peaks = np.array([step.peak.allocated_bytes for step in whole])
            growth = rate_of(steps, peaks, np.array([step.index for step in whole]))
        else:
            growth = step_growth(steps, log.blocks, log.owners, log.course, totals.index)
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
                modules_at_peak=modules_at_peak,
                oom=own_oom,
                ledger=balance(
                    owners,
                    modules,
                    reserved_bytes=reserved_bytes,
                    # What ran out had the phantom's own context; what might run out, the largest.
                    context_bytes=totals.context_bytes if own_oom else gpu.context_high_bytes,
                    non_torch_bytes=totals.non_torch_bytes,
                    others_bytes=totals.others_bytes,
                    total_bytes=gpu.total_bytes,
                ),
                steps=steps,
                evaluations=evaluations,
                growth=growth,
            )
        )
    return tuple(reports)


def _own_at(
    log: Log, device: int, event: int, allocated_bytes: int
) -> tuple[Ownership, tuple[ModuleShare, ...]]:
    """Who owned the `allocated_bytes` of a device after an event, and in which modules."""
    blocks, owners = log.blocks, log.owners
    live = blocks.is_live(event) & (blocks.device == device)
    by_category = dict.fromkeys(CATEGORIES, 0) | sum_by_category(owners, blocks.size_bytes, live)
    by_category[Category.UNATTRIBUTED] += allocated_bytes - int(blocks.size_bytes[live].sum())
    position = event + blocks.first_position + 1
    ownership = Ownership(position, allocated_bytes, MappingProxyType(by_category))
    return ownership, share_by_module(owners.modules, live, blocks.size_bytes)
