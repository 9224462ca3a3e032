"""A whole run explained: from the records of its processes to the `RunReport` that every output
shows.

report = explain_run(records, gpu=find_gpu("h100-80gb"), program=program)
report.verdict, report.devices[0].headroom_bytes
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from ullage.explain.basis import Basis, allocator_basis, device_basis
from ullage.explain.device import DeviceReport, explain_devices
from ullage.explain.host import HostMemory, host_memory
from ullage.explain.losses import describe_end, describe_timeout, find_gap, find_losses, settle_exit
from ullage.explain.lost_work import find_lost
from ullage.explain.pressure import PressureReport, find_pressure
from ullage.explain.program import Program
from ullage.explain.stops import describe_stop, find_stop
from ullage.explain.verdict import (
    ExitCode,
    Verdict,
    ended_out_of_memory,
    gpus_that_fit,
    was_interrupted,
)
from ullage.explain.warnings import find_warnings
from ullage.ground.protocol.plain import As, Mark, figure, plain
from ullage.ground.units import format_bytes
from ullage.ground.version import __version__
from ullage.log.model import OutOfMemory, ProgramExit, Record, Stop

if TYPE_CHECKING:
    from ullage.clock.price import Expense
    from ullage.clock.step_time import StepTime
    from ullage.explain.rules.rule import Finding
    from ullage.facts.gpus.catalog import Gpu


_OURS = "ullage.ground.errors."


@dataclass(frozen=True, slots=True)
class Process:
    """One watched process: its record, its snapshot file, the out-of-memory that ended it, if one
    did, what is found in its snapshot then, and the time of its last step, if that was asked for.
    """

    record: Annotated[Record, Mark.NO_KEY]
    snapshot: str | None
    oom: Annotated[OutOfMemory | None, Mark.NO_KEY]
    findings: Annotated[tuple[Finding, ...], Mark.NO_KEY] = ()
    time: Annotated[StepTime | None, Mark.NO_KEY] = None

    @figure
    def identity(self) -> Annotated[Mapping[str, int | None], Mark.FLAT]:
        """Its process id and its rank."""
        return {"pid": self.record.pid, "rank": self.record.rank}

    @figure
    def failed_request(self) -> Annotated[Mapping[str, Any] | None, As("oom")]:
        """The request that ended it, with what is found in its snapshot."""
        oom = self.oom
        return None if oom is None else {
            "requested_bytes": oom.requested_bytes, "message": oom.message or "",
            "where": oom.where or "", "findings": self.findings,
        }  # fmt: skip

    @figure
    def other_findings(self) -> Annotated[tuple[Finding, ...], As("findings")]:
        """The growth that was found, where it did not run out of memory."""
        return () if self.oom else self.findings

    @figure
    def pressure(self) -> Annotated[Mapping[str, PressureReport] | None, Mark.FLAT]:
        """The pressure on the allocator; a prediction has no such field."""
        return find_pressure(self.record)


@dataclass(frozen=True, slots=True)
class RunReport:
    """The report of a run; `reason` is the verdict in words, `fits_on` the catalogued GPUs that the
    highest peak of a whole run fits on. `covers` has for each rank that was played alone the ranks
    that it stands for. `stop` is where `--steps` ended the program; None: it ran to its end.
    `price` is what a GPU costs, in dollars an hour; None: no price was given.
    """

    SCHEMA: ClassVar[str] = "ullage.run/1"

    verdict: Verdict
    reason: str
    exit_code: Annotated[ExitCode, Mark.NO_KEY]
    program: Annotated[Program, Mark.FLAT]
    program_exit: Annotated[ProgramExit | None, Mark.NO_KEY]
    gpu: Annotated[Gpu, Mark.NO_KEY]
    is_unlimited: Annotated[bool, Mark.NO_KEY]
    torch: str
    ullage: str
    host: Annotated[HostMemory, Mark.FLAT]
    processes: tuple[Process, ...]
    devices: tuple[DeviceReport, ...]
    allocator_basis: Annotated[Basis, Mark.NO_KEY]
    device_basis: Annotated[Basis, Mark.NO_KEY]
    fits_on: tuple[str, ...]
    warnings: tuple[str, ...]
    covers: Annotated[tuple[tuple[int, tuple[int, ...]], ...], Mark.NO_KEY] = ()
    stop: Annotated[Stop | None, Mark.NO_KEY] = None
    price: Annotated[float | None, Mark.NO_KEY] = None

    @property
    def is_measured(self) -> bool:
        """True if all of it was recorded on a real GPU."""
        measured = [process.record.measured is not None for process in self.processes]
        return bool(measured) and all(measured)

    @property
    def slowest(self) -> Process | None:
        """The process with the longest step, which the others wait for; None: none was timed."""
        timed = [(p.time.step.s, p) for p in self.processes if p.time is not None]
        return max(timed, key=lambda pair: pair[0], default=(0.0, None))[1]

    @property
    def time(self) -> StepTime | None:
        """The time of a step of the slowest process."""
        return None if self.slowest is None else self.slowest.time

    @property
    def num_gpus(self) -> int:
        """The GPUs of the job: the ranks of its largest process group where one is played alone,
        else the devices that were used.
        """
        groups = [group for process in self.processes for group in process.record.groups]
        return max([1, len(self.devices), *(1 + max(group) for group in groups if group)])

    @property
    def cost(self) -> Expense | None:
        """The cost of a step; None without its time or a price."""
        if self.time is None or self.price is None:
            return None
        from ullage.clock.price import find_expense

        return find_expense(self.time, self.price, self.num_gpus)

    @figure
    def basis(self) -> Mapping[str, Basis]:
        """The basis of the allocator's figures, and of those of the whole device."""
        return {"allocator": self.allocator_basis, "device": self.device_basis}

    @figure
    def stopped(self) -> Mapping[str, Any] | None:
        """How `--steps` ended the program."""
        stop = self.stop
        return None if stop is None else {
            "after": describe_stop(stop), "num_steps": stop.count, "kind": stop.kind
        }  # fmt: skip

    @figure
    def ranks(self) -> Sequence[Mapping[str, Any]]:
        """The ranks that were played, and those that each stands for."""
        return [{"rank": rank, "stands_for": like} for rank, like in self.covers]

    @figure
    def exception(self) -> Mapping[str, str] | None:
        """The exception that ended the program, if one did."""
        end = self.program_exit
        if end is None or end.exception is None:
            return None
        return {"type": end.exception, "message": end.message or "", "where": end.where or ""}

    @figure
    def step_time(self) -> Annotated[Mapping[str, Any] | None, As("time")]:
        """The time of a step with the rank of the slowest process, and what it costs."""
        slowest = self.slowest
        if slowest is None:
            return None
        return {"rank": slowest.record.rank, **plain(slowest.time), "price": self.cost}

    @figure
    def first(self) -> Annotated[Mapping[str, Any], Mark.FLAT]:
        """The failed request and the snapshot of the first process."""
        if not self.processes:
            return {"oom": None, "snapshot": None}
        process = self.processes[0]
        return {"oom": process.failed_request, "snapshot": process.snapshot}


def explain_run(
    records: Sequence[tuple[Record, str | None]],
    *,
    program: Program,
    torch: str,
    gpu: Gpu,
    is_unlimited: bool,
    catalogued: Callable[[], Sequence[Gpu]] = tuple,
) -> RunReport:
    """Explains a run from its records, each with the path of its snapshot.

    Args:
        records: of the processes that touched a device; the program's own is put first.
        program: what was run.
        torch: the version of torch that it ran with.
        gpu: the device it ran on.
        is_unlimited: whether that device could not run out.
        catalogued: reads the GPUs to look among for those that the peak fits on.
    """
    settled = _with_highest([settle_exit(record, program) for record, _ in records])
    snapshots = [snapshot for _, snapshot in records]
    processes = _order_processes([*zip(settled, snapshots, strict=True)], program)
    devices = tuple(
        device
        for process in processes
        for device in explain_devices(
            process.record, process.oom, gpu=gpu, is_unlimited=is_unlimited
        )
    )
    own = next((p.record.exit for p in processes if p.record.pid == program.pid), None)
    verdict, reason, exit_code = _judge(program, own, processes, devices)
    all_records = [process.record for process in processes]
    headrooms = [device.headroom.low_bytes for device in devices if not device.is_unlimited]
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
        host=host_memory(all_records),
        processes=processes,
        devices=devices,
        allocator_basis=allocator_basis(all_records),
        device_basis=device_basis(gpu, all_records),
        # The peak of a program that was cut short is not what it needs.
        fits_on=_find_fitting(devices, catalogued) if verdict is Verdict.FITS else (),
        warnings=find_losses(program)
        + program.remarks
        + find_warnings(
            all_records,
            [(_on_device(d.totals.index, devices), d) for d in devices],
            lowest_headroom_bytes=min(headrooms, default=None),
            fits=verdict is Verdict.FITS,
        ),
        stop=find_stop(record.exit for record in all_records),
    )


def _with_highest(records: Sequence[Record]) -> list[Record]:
    """The records, each with what all processes used of a device as the one saw it that saw most:
    each looks when it takes memory itself.
    """
    levels: dict[int, list[int]] = {}
    for totals in (totals for record in records for totals in record.devices):
        levels.setdefault(totals.place, []).append(totals.peak_of_all_bytes)
    if not any(map(max, levels.values())):  # no device had several processes
        return list(records)

    def with_highest(record: Record) -> Record:
        devices = [
            replace(t, peak_of_all_bytes=max(all_), num_others=len(all_) - 1)
            for t, all_ in ((totals, levels[totals.place]) for totals in record.devices)
        ]
        return replace(record, devices=tuple(devices))

    return list(map(with_highest, records))


def _order_processes(
    records: Sequence[tuple[Record, str | None]], program: Program
) -> tuple[Process, ...]:
    """The program's own process first, then by rank and start."""
    ordered = sorted(records, key=lambda pair: pair[0].order(program.pid))
    everyone = [record for record, _ in records]
    return tuple(
        Process(record, snapshot, _fatal_oom(record, program, everyone))
        for record, snapshot in ordered
    )


def _find_fitting(
    devices: Sequence[DeviceReport], catalogued: Callable[[], Sequence[Gpu]]
) -> tuple[str, ...]:
    """The GPUs on which the highest peak fits; none where memory ran out before it was reached."""
    if not devices or any(device.oom is not None for device in devices):
        return ()
    fullest = max(devices, key=lambda device: device.peak_used_bytes)
    beside_bytes = fullest.totals.beside_bytes
    return gpus_that_fit(catalogued(), fullest.reserved.answered_bytes, beside_bytes)


def _fatal_oom(record: Record, program: Program, everyone: Sequence[Record]) -> OutOfMemory | None:
    """The out-of-memory that ended a process or a part of it, or for which a server did not
    answer.
    """
    failed = program.failed_request
    is_unanswered = failed is not None and failed.is_out_of_memory and bool(record.ooms)
    if not ended_out_of_memory(record.exit, had_ooms=bool(record.ooms)) and not is_unanswered:
        # One that ended a thread or a callback, or work that was lost: whatever became of the rest.
        ended = next((oom for oom in record.ooms if oom.ended), None)
        return find_lost(record) if ended is None and record.exit.code == 0 else ended
    # The program did not look at the end of this one; one that came later may have done its work.
    is_made_good = any(
        other.started_s >= record.ended_s and other.exit.code == 0 for other in everyone
    )
    is_ignored = program.exit_code == 0 and record.pid != program.pid and not is_made_good
    part = f"process {record.pid}" if is_ignored else None
    if record.ooms:
        last = record.ooms[-1]
        return replace(
            last,
            message=record.exit.message or last.message,
            where=record.exit.where or last.where,
            ended=part or last.ended,
        )
    return OutOfMemory(
        position=record.first_position + len(record.events),
        device=0,
        requested_bytes=0,
        message=record.exit.message,
        where=record.exit.where,
        ended=part,
    )


def _judge(
    program: Program,
    own: ProgramExit | None,
    processes: Sequence[Process],
    devices: Sequence[DeviceReport],
) -> tuple[Verdict, str, ExitCode]:
    oom = next((process.oom for process in processes if process.oom is not None), None)
    stopped = own is not None and was_interrupted(own)
    if program.was_interrupted or stopped or program.exit_code == ExitCode.INTERRUPTED:
        return Verdict.FAILED, "interrupted", ExitCode.INTERRUPTED
    if program.timed_out_after_s is not None:
        return Verdict.FAILED, describe_timeout(program.timed_out_after_s), ExitCode.PROGRAM_FAILED
    failed = program.failed_request
    request = f", in request {failed.where}" if failed is not None and failed.where else ""
    if oom is not None and (program.exit_code != 0 or failed is not None or oom.ended):
        reason = _no_room(oom, devices) + request
        return Verdict.OUT_OF_MEMORY, reason, ExitCode.ANSWER_IS_NO
    if program.exit_code != 0:
        reason = _failure(program, own, processes) + request
        return Verdict.FAILED, reason, ExitCode.PROGRAM_FAILED
    if failed is not None:  # a server went on after a request that it did not answer
        if failed.is_out_of_memory:
            return Verdict.OUT_OF_MEMORY, f"no room{request}", ExitCode.ANSWER_IS_NO
        return Verdict.FAILED, f"{failed.failure}{request}", ExitCode.PROGRAM_FAILED
    if program.plan is not None and not program.plan.is_applied:
        return Verdict.FAILED, program.plan.failure, ExitCode.PROGRAM_FAILED
    gap = find_gap(program, [process.record for process in processes])
    if gap is not None:
        return Verdict.FAILED, gap, ExitCode.PROGRAM_FAILED
    limited = [device for device in devices if not device.is_unlimited]
    tightest = min(limited, key=lambda device: device.headroom_bytes, default=None)
    if tightest is not None and tightest.headroom_bytes < 0:
        missing = format_bytes(-tightest.headroom_bytes)
        low = format_bytes(tightest.gpu.context_low_bytes)
        high = format_bytes(tightest.gpu.context_high_bytes)
        beside = " and what libraries hold" if tightest.totals.outside else ""
        reason = (
            f"the program ran through, but up to {missing} would be missing"
            f"{_on_device(tightest.totals.index, devices)}: the driver's context, which takes "
            f"between {low} and {high},{beside} may be that large"
        )
        return Verdict.OUT_OF_MEMORY, reason, ExitCode.ANSWER_IS_NO
    return Verdict.FITS, "fits", ExitCode.FINE


def _no_room(oom: OutOfMemory, devices: Sequence[DeviceReport]) -> str:
    """The request that failed, its place, and the part of the program that it ended."""
    request = f" for {format_bytes(oom.requested_bytes)}" if oom.requested_bytes else ""
    which = _on_device(oom.device, devices)
    where = f" at {oom.where}" if oom.where else ""
    ended = f"; it ended {oom.ended}, and the program went on without it" if oom.ended else ""
    others = next((d.ledger.others_bytes for d in devices if d.oom is oom), 0)
    beside = f"; other processes held {format_bytes(others)} of it" if others else ""
    return f"no room{request}{which}{where}{beside}{ended}"


def _on_device(index: int, devices: Sequence[DeviceReport]) -> str:
    """Which device, where a process used several."""
    several = any(device.totals.index for device in devices)
    return f" on device {index}" if several else ""


def _failure(program: Program, own: ProgramExit | None, processes: Sequence[Process]) -> str:
    """Why a program failed, in one line; what started others, such as a launcher, as the first of
    them that raised something.
    """
    if own is None:
        exits = (process.record.exit for process in processes)
        raised = next((exit_ for exit_ in exits if exit_.exception is not None), None)
        if raised is not None:
            return f"a process that it started: {_failure(program, raised, ())}"
    if own is None or own.exception is None:
        return describe_end(program, has_record=own is not None, is_child_recorded=bool(processes))
    message = (own.message or "").partition("\n")[0]
    where = f" at {own.where}" if own.where else ""
    if own.exception.startswith(_OURS):  # its text is fit to be shown as it is
        return f"{message}{where}"
    name = own.exception.removeprefix("builtins.")
    return f"{name}: {message}{where}" if message else f"{name}{where}"
