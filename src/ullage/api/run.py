"""Runs a program on the phantom and explains the result: `ullage run` and `ullage.run`.

run = ullage.run(["train.py", "--batch-size", "16"], gpu="h100-80gb")
run.verdict, run.peak_reserved_bytes, run.devices[0].headroom_bytes
print(run.text())
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import strftime
from typing import TYPE_CHECKING, Any, Unpack

from ullage.errors import SpecError
from ullage.files import check_writable
from ullage.gpus.price import check_price
from ullage.phantom.device import choose_device
from ullage.phantom.program import resolve_program
from ullage.phantom.rank import Rank, choose_ranks
from ullage.runs.job import Job, ProgramOptions, make_job, make_options
from ullage.runs.one import run_job

if TYPE_CHECKING:
    from ullage.clock.step_time import StepTime
    from ullage.explain.device import DeviceReport
    from ullage.explain.rules.rule import Finding
    from ullage.explain.run import RunReport
    from ullage.explain.verdict import Verdict
    from ullage.techniques.plan import Plan


_NOT_TIMED = "no step was timed: none ended"
_MAX_STEM = 100  # of a program's name, in the name of its snapshot


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run: its report, and its figures by name. `peak_*_bytes` are those of the first
    device, 0 without one.
    """

    report: RunReport

    @property
    def verdict(self) -> Verdict:
        """Whether the program fits."""
        return self.report.verdict

    @property
    def exit_code(self) -> int:
        """What the command line exits with: 0 fits, 1 out of memory, 3 the program failed, 130
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
        """What is found in the snapshot of a program that fits, if it lowers the peak by more than
        10 %, the most first. Nothing is read before this is asked for.
        """
        from ullage.explain.remedies import find_remedies

        is_told = any(process.findings for process in self.report.processes)
        if self.exit_code or is_told or self.snapshot is None or not self.devices:
            return ()
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
        from ullage.report.page.run import render_run_page

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
        from ullage.report.document.trace_events.step import render_timeline

        return render_timeline(self.report)

    @property
    def document(self) -> dict[str, Any]:
        """The run document, schema "ullage.run/1"."""
        from ullage.report.document.run import run_document

        return run_document(self.report)

    def text(self, width: int = 80, *, full: bool = False) -> str:
        """The report for people, without colour: in short, or the whole of it."""
        from ullage.answers.text import render
        from ullage.report.text.run import brief_run_blocks, run_blocks

        if full:
            return render(run_blocks(self.report), width)
        return render(brief_run_blocks(self.report, self.findings), width)


def run(
    program: Sequence[str],
    *,
    gpu: str | None = None,
    memory: str | int | None = None,
    capability: str | None = None,
    budget: str | int | None = None,
    alloc_conf: str | None = None,
    steps: int | None = None,
    python: str | os.PathLike[str] | None = None,
    snapshot: str | os.PathLike[str] | None = None,
    force: bool = False,
    real_init: bool = False,
    dummy_weights: bool = False,
    values: bool = True,
    assume: Sequence[str] = (),
    plan: str | os.PathLike[str] | Plan | None = None,
    platform: str = "linux",
    gpus: int | None = None,
    world_size: int | None = None,
    rank: int | None = None,
    local_world_size: int | None = None,
    time: bool = False,
    price: float | None = None,
    interconnect: str | None = None,
    clock: str = "real",
    measured: str | os.PathLike[str] | None = None,
    nvml: str | os.PathLike[str] | None = None,
    guard: Sequence[str | os.PathLike[str]] | None = None,
    resume: Sequence[str] = (),
    try_remedies: bool = False,
    stdout_to_stderr: bool = False,
    say: Callable[[str], None] | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> Run:
    """Runs a program on a simulated GPU, and reports whether it fits, its peak, and who owns it.

    Args:
        program: its words, as they would follow `ullage run --`: a file and its arguments, "-m" and
            a module, or the name of a Python entry point.
        gpu: a GPU of the catalogue; without gpu, memory and capability, an H100 with
            unlimited memory.
        memory: another total, such as "24GiB".
        capability: another compute capability, such as "8.9".
        budget: what may be used of the device, its context included, such as "20GiB": beyond that
            the program runs out of memory, as where others hold the rest. None: all of it.
        alloc_conf: what PYTORCH_ALLOC_CONF is set to.
        steps: stop after so many training steps.
        python: the interpreter of another environment.
        snapshot: where the memory snapshot goes; None keeps none.
        force: overwrite that file.
        real_init: really initialise weights on the CPU (slower, and no allocation depends on it).
        dummy_weights: make up weight files of transformers models that are not there.
        values: compute small values (masks, counts, flags) beside the phantom.
        assume: what is assumed of values that are not known, such as "nonzero=half" (or all, none,
            a fraction) and "experts=balanced" (or worst).
        plan: a plan, or the file of one, that is applied to the model that the program trains.
        platform: the system with the GPU, "linux" or "windows" (also WSL2): its driver's order of
            addresses decides between free blocks of one size.
        gpus: how many devices there are, all alike; None is one, or those of a rank's node.
        world_size: the number of ranks of a distributed job of which the program plays one.
        rank: which; None is rank 0.
        local_world_size: how many ranks are on one node; None is 8, or all of a smaller job.
        time: predict how long a step takes.
        price: dollars for a GPU-hour, for what steps and tokens cost; implies `time`.
        interconnect: the links between GPUs, for the time of collectives; None: those that the GPU
            has. Implies `time`.
        clock: "virtual": what the program reads of time.perf_counter, time.time and CUDA's events
            is the predicted time. Implies `time`.
        measured: a recording of `ullage record --kernels` on that GPU, whose kernels correct the
            times; the basis says which. Implies `time`.
        nvml: a directory in which NVML programs outside see the GPUs, and what the program uses of
            them (`ullage nvml`); made if it does not exist. None: none.
        guard: where the program ends out of memory, it is run again under the next of these rungs,
            as by `ullage exec --guard`; the result is that of the last run. Files of plans, or one
            of a ladder; empty: checkpoints. None: it is run once.
        resume: words that a further run appends, to go on from the program's own checkpoint.
        try_remedies: where memory runs out, run the program again with what may help; needs a
            snapshot.
        stdout_to_stderr: the program's own output goes to stderr.
        say: called with a line for each run that the guard follows by another.
        on_progress: called with a line, such as "step 3 allocated 8641234567", as steps end.

    Raises:
        SpecError: an option or the program is not possible.
        EnvironmentProblem: no torch for CUDA there, or one that this ullage does not know.
        SnapshotError: what the program left cannot be read, or `measured`.
        PlanError: the plan cannot be read, or cannot be a rung.
    """
    check_price(price)
    path = None if snapshot is None else Path(snapshot)
    if path is not None:
        check_writable(path, force=force)
    job = make_run_job(
        program, gpu=gpu, memory=memory, capability=capability, budget=budget,
        alloc_conf=alloc_conf, steps=steps, python=python, has_snapshot=path is not None,
        real_init=real_init, dummy_weights=dummy_weights, values=values, assume=assume, plan=plan,
        platform=platform, gpus=gpus, world_size=world_size, rank=rank,
        local_world_size=local_world_size, time=time or check_price(price) is not None,
        interconnect=interconnect, clock=clock, measured=measured,
    )  # fmt: skip
    if nvml is not None:
        job = publish(job, Path(nvml))
    run_one = partial(
        run_job, snapshot=path, stdout_to_stderr=stdout_to_stderr, on_progress=on_progress,
        meanwhile=_load_report,
    )  # fmt: skip
    if guard is None:
        report = run_one(job, force=force)
    else:
        from ullage.runs.guarded import run_guarded

        job, report = run_guarded(job, guard, tuple(resume), run_one, force=force, say=say)
    if any(process.oom for process in report.processes):
        from ullage.plan.remedy_runs import replay_settings
        from ullage.plan.remedy_runs import try_remedies as try_each

        unpublished = replace(job, options=replace(job.options, nvml=None))
        report = (
            try_each(report, unpublished, on_progress)
            if try_remedies
            else replay_settings(report, unpublished)
        )
    if job.options.has_clock and report.time is None:
        report = replace(report, warnings=(*report.warnings, _NOT_TIMED))
    return Run(replace(report, price=price))


def publish(job: Job, directory: Path) -> Job:
    """The job whose processes tell NVML programs what they use; raises SpecError where the
    directory cannot be theirs.
    """
    from ullage.phantom.nvml.machine import machine_of, open_machine

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
    """What every report needs, imported while the program runs."""
    from ullage.answers import text as _renderer  # noqa: F401
    from ullage.report.text import run as _view  # noqa: F401


def make_run_job(
    program: Sequence[str],
    *,
    has_snapshot: bool,
    gpu: str | None = None,
    memory: str | int | None = None,
    capability: str | None = None,
    budget: str | int | None = None,
    python: str | os.PathLike[str] | None = None,
    gpus: int | None = None,
    world_size: int | None = None,
    rank: int | None = None,
    local_world_size: int | None = None,
    **options: Unpack[ProgramOptions],
) -> Job:
    """The job of `run`, which has these options; raises as it does."""
    return make_job(
        program,
        device=choose_device(gpu, memory=memory, capability=capability, budget=budget),
        python=python,
        options=replace(
            make_options(**options),
            has_snapshot=has_snapshot,
            rank=_choose_rank(rank, world_size, local_world_size),
            num_devices=gpus,
        ),
    )


def _choose_rank(
    rank: int | None, world_size: int | None, local_world_size: int | None
) -> Rank | None:
    if world_size is None:
        if rank is not None or local_world_size is not None:
            raise SpecError("a rank is one of a job; give the number of its ranks (world size) too")
        return None
    return choose_ranks((rank or 0,), world_size, local_world_size)[0]


def default_snapshot(
    program: Sequence[str], python: str | None = None, *, prefix: str = "ullage"
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
