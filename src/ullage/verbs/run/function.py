"""Runs a program on the phantom and explains the result: `ullage run` and `ullage.run`.

run = ullage.run(["train.py", "--batch-size", "16"], gpu="h100-80gb")
run.verdict, run.peak_reserved_bytes, run.devices[0].headroom_bytes
print(run.text())
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import strftime
from typing import TYPE_CHECKING, Annotated

from ullage.answers.verb_answer import VerbAnswer
from ullage.facts.gpus.price import check_price
from ullage.ground.errors import SpecError
from ullage.ground.files import check_writable, write_text
from ullage.ground.protocol.option import takes
from ullage.ground.protocol.plain import Mark
from ullage.players.phantom.device import PhantomDevice, choose_device
from ullage.players.phantom.program import resolve_program
from ullage.players.phantom.rank import Rank, choose_ranks
from ullage.search.runs.job import Job, make_job, make_options
from ullage.search.runs.one import run_job
from ullage.verbs.run.options import RunOptions

if TYPE_CHECKING:
    from ullage.answers.block_kinds import Blocks
    from ullage.clock.step_time import StepTime
    from ullage.explain.device import DeviceReport
    from ullage.explain.rules.rule import Finding
    from ullage.explain.run import RunReport
    from ullage.explain.verdict import Verdict


_NOT_TIMED = "no step was timed: none ended"
_MAX_STEM = 100  # of a program's name, in the name of its snapshot


@dataclass(frozen=True, slots=True)
class Run(VerbAnswer):
    """A finished run: its report, and its figures by name. `peak_*_bytes` are those of the first
    device, 0 without one.
    """

    report: Annotated[RunReport, Mark.FLAT]

    @property
    def verdict(self) -> Verdict:
        """The verdict on the program's fit."""
        return self.report.verdict

    @property
    def exit_code(self) -> int:
        """The exit code of the command line: 0 fits, 1 out of memory, 3 the program failed, 130
        interrupted.
        """
        return int(self.report.exit_code)

    @property
    def devices(self) -> tuple[DeviceReport, ...]:
        """Each device, as each process used it."""
        return self.report.devices

    @property
    def peak_requested_bytes(self) -> int:
        """The most bytes the program had asked for at once."""
        return max((device.totals.peak_requested_bytes for device in self.devices[:1]), default=0)

    @property
    def peak_allocated_bytes(self) -> int:
        """The most bytes in live blocks, as torch.cuda.max_memory_allocated() has it."""
        return max((device.totals.peak_allocated_bytes for device in self.devices[:1]), default=0)

    @property
    def peak_reserved_bytes(self) -> int:
        """The most bytes the allocator held, as torch.cuda.max_memory_reserved() has it."""
        return max((device.totals.peak_reserved_bytes for device in self.devices[:1]), default=0)

    @property
    def peak_used_bytes(self) -> int:
        """The most bytes of the whole device in use, with the driver's context at its upper end."""
        return max((device.peak_used_bytes for device in self.devices[:1]), default=0)

    @property
    def snapshot(self) -> str | None:
        """The snapshot file of the first process; None where none was asked for or written."""
        return self.report.processes[0].snapshot if self.report.processes else None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings in the snapshot of a program that fits, those that lower the peak by more
        than 10 %, the most first. Nothing is read before this is asked for.
        """
        is_told = any(process.findings for process in self.report.processes)
        if self.exit_code or is_told or self.snapshot is None or not self.devices:
            return ()
        from ullage.explain.remedies import find_remedies

        index, least = self.devices[0].totals.index, self.peak_allocated_bytes // 10
        findings = find_remedies(self.snapshot, self.report.processes[0].record)
        worth = (each for each in findings if each.device == index and each.gain_bytes > least)
        return tuple(sorted(worth, key=lambda each: -each.gain_bytes))

    @property
    def html(self) -> str:
        """One self-contained page: the snapshots of all processes, and the report; the run document
        is in it.

        Raises:
            SnapshotError: no snapshot was kept, or it tells of no device memory.
        """
        from ullage.verbs.run.page import render_run_page

        return render_run_page(self.report)

    @property
    def time(self) -> StepTime | None:
        """The time of the last whole step, of the slowest process; None: it was not asked for, or
        no step was whole.
        """
        return self.report.time

    @property
    def timeline(self) -> str:
        """The last whole step in the trace event format, for ui.perfetto.dev and chrome://tracing.

        Raises:
            SnapshotError: no step was timed.
        """
        from ullage.verbs.document.trace_events import render_timeline

        return render_timeline(self.report)

    def export(self, path: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Writes the timeline to a file, and returns where it is."""
        return write_text(self.timeline, Path(path), force=force)

    def blocks(self, *, full: bool = False) -> Blocks:
        """The blocks of its report; a short one has the findings that are worth most."""
        from ullage.verbs.run.text import run_blocks

        return run_blocks(self.report, () if full else self.findings)


@takes(RunOptions)
def run(options: RunOptions) -> Run:
    """Runs a program on a simulated GPU, and reports whether it fits, its peak, and who owns it.

    Raises:
        SpecError: an option or the program is not possible.
        EnvironmentProblem: no torch for CUDA there, or one that this ullage does not know.
        SnapshotError: what the program left cannot be read, or `measured`.
        PlanError: the plan cannot be read, or cannot be a rung.
    """
    check_one_run(options)
    check_price(options.price)
    path = None if options.snapshot is None else Path(options.snapshot)
    if path is not None:
        check_writable(path, force=options.force)
    job = make_run_job(options)
    if options.nvml is not None:
        job = publish(job, Path(options.nvml))
    run_one = partial(
        run_job, snapshot=path, stdout_to_stderr=options.stdout_to_stderr,
        on_progress=options.on_progress, meanwhile=_load_report,
    )  # fmt: skip
    if options.guard is None:
        report = run_one(job, force=options.force)
    else:
        from ullage.search.runs.guarded import run_guarded

        job, report = run_guarded(
            job, options.guard, tuple(options.resume), run_one, force=options.force, say=options.say
        )
    if any(process.oom for process in report.processes):
        from ullage.search.remedy_runs import replay_settings, try_remedies

        unpublished = replace(job, options=replace(job.options, nvml=None))
        report = (
            try_remedies(report, unpublished, options.on_progress)
            if options.try_remedies
            else replay_settings(report, unpublished)
        )
    if job.options.has_clock and report.time is None:
        report = replace(report, warnings=(*report.warnings, _NOT_TIMED))
    return Run(replace(report, price=options.price))


def make_run_job(options: RunOptions) -> Job:
    """The job of `run`; raises as it does."""
    settings = replace(
        make_options(options),
        has_snapshot=options.snapshot is not None,
        rank=_choose_rank(options),
        num_devices=options.gpus,
    )
    return make_job(
        options.program, device=device_of(options), python=options.python, options=settings
    )


def check_one_run(options: RunOptions) -> None:
    """Raises SpecError where the options are those of several runs, or do not go together."""
    if options.is_sweep:
        raise SpecError("several values and several GPUs are for ullage.sweep; give one of each")
    if options.has_many_ranks:
        raise SpecError("several ranks are for ullage.run_ranks; give one")
    check_guard(options.guard, options.plan, options.resume)


def check_guard(guard: Sequence[str] | None, plan: object, resume: Sequence[str]) -> None:
    """Raises SpecError where these options do not go together."""
    if guard is not None and plan is not None:
        raise SpecError("--plan and --guard are given; expected one: a plan can be a rung")
    if guard is None and resume:
        raise SpecError("--resume is for restarts; add --guard, which starts a program again")


def check_without(options: RunOptions) -> None:
    """Raises SpecError for an option of one run, where several are asked for."""
    for flag, value, what in (
        ("--guard", options.guard, "one run, or one rank of a job"),
        ("--try-remedies", options.try_remedies or None, "one run on one GPU"),
    ):
        if value is not None:
            raise SpecError(f"{flag} is for {what}; leave it or the others out")
    if options.nvml is not None:
        raise SpecError(
            "--nvml is for one run; start several with the same directory, or torchrun in one"
        )
    check_guard(None, None, options.resume)
    check_price(options.price)


def device_of(options: RunOptions) -> PhantomDevice:
    """The device that the options name."""
    return choose_device(
        options.gpu, memory=options.memory, capability=options.capability, budget=options.budget
    )


def publish(job: Job, directory: Path) -> Job:
    """The job whose processes tell NVML programs what they use; raises SpecError where the
    directory cannot be theirs.
    """
    from ullage.players.phantom.nvml.machine import machine_of, open_machine

    options = job.options
    machine = machine_of(
        job.device.environment_text(),
        job.build.libraries_text(),
        options.num_devices or (options.rank.local_world_size if options.rank else 1),
        {**os.environ, **options.variables}.get("CUDA_VISIBLE_DEVICES"),
    )
    open_machine(directory, machine)
    return replace(job, options=replace(options, nvml=directory.absolute()))


def _load_report() -> None:
    """Imports what every report needs, while the program runs."""
    from ullage.answers import text as _renderer  # noqa: F401
    from ullage.verbs.run import text as _view  # noqa: F401


def _choose_rank(options: RunOptions) -> Rank | None:
    """The one rank of a job that is played; None: the program is not a rank."""
    ranks, size = options.ranks, options.world_size
    if size is None:
        if ranks is not None or options.local_world_size is not None:
            raise SpecError("a rank is one of a job; give the number of its ranks (world size) too")
        return None
    numbers = ranks if isinstance(ranks, Sequence) else (ranks or 0,)
    return choose_ranks(tuple(map(int, numbers)), size, options.local_world_size)[0]


def default_snapshot(
    program: Sequence[str], python: str | os.PathLike[str] | None = None, *, prefix: str = "ullage"
) -> Path:
    """A name for the snapshot of a run or record in the current directory that no file has:
    ullage-train-20261120-141502.pickle.
    """
    name = resolve_program(program, python).name
    stem = f"{prefix}-{name[:_MAX_STEM]}-{strftime('%Y%m%d-%H%M%S')}"
    path, number = Path(f"{stem}.pickle"), 2
    while os.path.lexists(path):
        path, number = Path(f"{stem}-{number}.pickle"), number + 1
    return path
