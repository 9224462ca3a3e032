"""A whole run explained: from the records of its processes to the `RunReport` that every output
shows.

report = explain_run(records, gpu=find_gpu("h100-80gb"), program=program)
report.verdict, report.devices[0].headroom.headroom_bytes
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ullage import __version__
from ullage.explain.basis import Basis, allocator_basis, device_basis
from ullage.explain.ledger import Ledger, balance
from ullage.explain.ownership import attribute
from ullage.explain.peak import Ownership, own_at, peak_position, peak_reserved_position
from ullage.explain.phases import find_regions
from ullage.explain.steps import StepPeak, peak_per_step
from ullage.explain.verdict import (
    ExitCode,
    Headroom,
    Verdict,
    ended_out_of_memory,
    find_headroom,
    gpus_that_fit,
    was_interrupted,
)
from ullage.explain.warnings import find_warnings
from ullage.trace.lifetime import find_lifetimes
from ullage.trace.model import DeviceTotals, OutOfMemory, ProgramExit, Record
from ullage.trace.timeline import level_at, trace_levels
from ullage.units import format_bytes

if TYPE_CHECKING:
    from ullage.gpus.catalog import Gpu


@dataclass(frozen=True, slots=True)
class Program:
    """What was run and how it ended, as its parent saw it.

    Attributes:
        argv: the words after `--`.
        pid: of the process that was started.
        exit_code: of that process; 128 + the number of the signal that ended it.
        wall_s: from its start to its end.
        was_interrupted: the user asked the run to stop.
    """

    argv: tuple[str, ...]
    pid: int
    exit_code: int
    wall_s: float
    was_interrupted: bool = False


@dataclass(frozen=True, slots=True)
class Process:
    """One watched process: its record, its snapshot file, and the out-of-memory that ended it, if
    one did.
    """

    record: Record
    snapshot: str | None
    oom: OutOfMemory | None


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """One device as one process used it; `oom` ended the process there, and is then the moment of
    the ledger.
    """

    rank: int | None
    gpu: Gpu
    is_unlimited: bool
    totals: DeviceTotals
    headroom: Headroom
    at_peak: Ownership
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
        """The most of the device that was in use: reserved + context, upper end + non-torch."""
        return (
            self.totals.peak_reserved_bytes
            + self.gpu.context_high_bytes
            + self.totals.non_torch_bytes
        )


@dataclass(frozen=True, slots=True)
class RunReport:
    """What a run says; `reason` is the verdict in words, `fits_on` the catalogued GPUs that its
    highest peak fits on.
    """

    verdict: Verdict
    reason: str
    exit_code: ExitCode
    program: Program
    program_exit: ProgramExit | None
    gpu: Gpu
    is_unlimited: bool
    torch: str
    ullage: str
    host_peak_bytes: int
    pinned_peak_bytes: int
    processes: tuple[Process, ...]
    devices: tuple[DeviceReport, ...]
    allocator_basis: Basis
    device_basis: Basis
    fits_on: tuple[str, ...]
    warnings: tuple[str, ...]


def explain_run(
    records: Sequence[tuple[Record, str | None]],
    *,
    program: Program,
    torch: str,
    gpu: Gpu,
    is_unlimited: bool,
    catalogued: Sequence[Gpu] = (),
) -> RunReport:
    """Explains a run from its records, each with the path of its snapshot; the program's own
    process comes first.
    """
    ordered = sorted(
        records, key=lambda pair: (pair[0].pid != program.pid, pair[0].rank or 0, pair[0].started_s)
    )
    processes = tuple(Process(record, snapshot, _fatal_oom(record)) for record, snapshot in ordered)
    devices = tuple(
        report
        for process in processes
        for report in _explain_devices(process, gpu=gpu, is_unlimited=is_unlimited)
    )
    own = next(
        (process.record.exit for process in processes if process.record.pid == program.pid), None
    )
    verdict, reason, exit_code = _judge(program, own, processes, devices)
    only_records = [process.record for process in processes]
    peak = max(devices, key=lambda device: device.peak_used_bytes, default=None)
    return RunReport(
        verdict=verdict,
        reason=reason,
        exit_code=exit_code,
        program=program,
        program_exit=own,
        gpu=gpu,
        is_unlimited=is_unlimited,
        torch=torch,
        ullage=__version__,
        host_peak_bytes=max((record.host_peak_bytes for record in only_records), default=0),
        pinned_peak_bytes=max((record.pinned_peak_bytes for record in only_records), default=0),
        processes=processes,
        devices=devices,
        allocator_basis=allocator_basis(only_records),
        device_basis=device_basis(gpu),
        fits_on=()
        if peak is None
        else gpus_that_fit(
            catalogued, peak.totals.peak_reserved_bytes, peak.totals.non_torch_bytes
        ),
        warnings=find_warnings(
            only_records,
            [device.steps for device in devices],
            lowest_headroom_bytes=None if peak is None or is_unlimited else peak.headroom.low_bytes,
            fits=verdict is Verdict.FITS,
        ),
    )


def _explain_devices(process: Process, *, gpu: Gpu, is_unlimited: bool) -> list[DeviceReport]:
    """The devices that a process touched."""
    record = process.record
    lifetimes = find_lifetimes(record.events, record.first_position)
    regions = find_regions(record.marks, record.first_position)
    categories = attribute(lifetimes, record.claims, record.workspaces, regions)
    was_there = lifetimes.birth == record.first_position
    reports = []
    for totals in record.devices:
        base = int(lifetimes.size_bytes[was_there & (lifetimes.device == totals.index)].sum())
        timeline = trace_levels(record.events, totals.index, record.first_position, base)
        oom = (
            process.oom if process.oom is not None and process.oom.device == totals.index else None
        )
        moment = level_at(
            timeline, peak_reserved_position(timeline) if oom is None else oom.position
        )
        reports.append(
            DeviceReport(
                rank=record.rank,
                gpu=gpu,
                is_unlimited=is_unlimited,
                totals=totals,
                headroom=find_headroom(
                    gpu, totals.peak_reserved_bytes, totals.non_torch_bytes, record.assumed
                ),
                at_peak=own_at(
                    lifetimes,
                    categories,
                    totals.index,
                    peak_position(timeline),
                    totals.peak_allocated_bytes,
                ),
                oom=oom,
                ledger=balance(
                    own_at(
                        lifetimes, categories, totals.index, moment.position, moment.allocated_bytes
                    ),
                    # The log of a capped record may have missed the highest moment.
                    reserved_bytes=totals.peak_reserved_bytes
                    if oom is None
                    else moment.reserved_bytes,
                    context_bytes=gpu.context_high_bytes,
                    non_torch_bytes=totals.non_torch_bytes,
                    total_bytes=gpu.total_bytes,
                ),
                steps=peak_per_step(timeline, record.marks, regions),
            )
        )
    return reports


def _fatal_oom(record: Record) -> OutOfMemory | None:
    """The out-of-memory that ended a process."""
    if not ended_out_of_memory(record.exit):
        return None
    if record.ooms:
        last = record.ooms[-1]
        return OutOfMemory(
            position=last.position,
            device=last.device,
            requested_bytes=last.requested_bytes,
            message=record.exit.message or last.message,
            where=record.exit.where or last.where,
        )
    return OutOfMemory(
        position=record.first_position + len(record.events),
        device=0,
        requested_bytes=0,
        message=record.exit.message,
        where=record.exit.where,
    )


def _judge(
    program: Program,
    own: ProgramExit | None,
    processes: Sequence[Process],
    devices: Sequence[DeviceReport],
) -> tuple[Verdict, str, ExitCode]:
    """The verdict, its reason, and what ullage exits with."""
    oom = next((process.oom for process in processes if process.oom is not None), None)
    if program.was_interrupted or (own is not None and was_interrupted(own)):
        return Verdict.FAILED, "interrupted", ExitCode.INTERRUPTED
    if oom is not None and program.exit_code != 0:
        where = f" at {oom.where}" if oom.where else ""
        return Verdict.OUT_OF_MEMORY, f"out of memory{where}", ExitCode.ANSWER_IS_NO
    if program.exit_code != 0:
        return Verdict.FAILED, _failure(program, own), ExitCode.PROGRAM_FAILED
    limited = [device for device in devices if not device.is_unlimited]
    tightest = min(limited, key=lambda device: device.headroom.headroom_bytes, default=None)
    if tightest is not None and tightest.headroom.headroom_bytes < 0:
        missing = format_bytes(-tightest.headroom.headroom_bytes)
        low, high = (
            format_bytes(bytes_)
            for bytes_ in (tightest.gpu.context_low_bytes, tightest.gpu.context_high_bytes)
        )
        reason = f"the program ran through, but {missing} is missing where the driver's context (between {low} and {high}) is large"
        return Verdict.OUT_OF_MEMORY, reason, ExitCode.ANSWER_IS_NO
    return Verdict.FITS, "fits", ExitCode.FINE


def _failure(program: Program, own: ProgramExit | None) -> str:
    """Why a program failed, in one line."""
    if own is None or own.exception is None:
        signal = program.exit_code - 128
        how = (
            f"was ended by signal {signal}"
            if 0 < signal < 65
            else f"exited with code {program.exit_code}"
        )
        return f"the program {how}"
    message = (own.message or "").partition("\n")[0]
    where = f" at {own.where}" if own.where else ""
    return f"{own.exception}: {message}{where}" if message else f"{own.exception}{where}"
