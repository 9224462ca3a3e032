"""Tries what is advised of a program that ran out of memory: what `ullage run --try-remedies` does.

    report = try_remedies(report, job)
    report.processes[0].findings[1].trial.makes_it_fit

The program is run again where memory is without end, a few steps further than it came. In that
trace a change of the program is replayed through PyTorch's allocator on the room that there was;
settings of the allocator and techniques of `ullage fit` are run on the device itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from ullage.act.techniques.technique import Action
from ullage.ground.errors import EnvironmentProblem, PlanError, SnapshotError, SpecError
from ullage.players.phantom.device import PhantomDevice
from ullage.players.phantom.launch import run_directory
from ullage.search.runner import make_runner
from ullage.search.runs.forks import Forks
from ullage.search.runs.job import Job
from ullage.search.runs.search import LimitReached
from ullage.search.runs.trials import Trials

if TYPE_CHECKING:
    from ullage.explain.rules.rule import Finding
    from ullage.explain.run import Process, RunReport
    from ullage.explain.snapshot import SnapshotReport
    from ullage.explain.trial import Trial

# The steps beyond those that ended: the one that failed, and two that show that they are alike.
_MORE_STEPS: Final = 3
# Runs of the program beside the one without end, and what they may take together.
_MAX_RUNS: Final = 4
_MIN_PATIENCE_S: Final = 120.0
_PATIENCE: Final = 20.0
_FLOAT16: Final = "float16"
# The technique that does what a rule advises; with modules where it is applied to blocks.
_TECHNIQUES: Final[Mapping[str, Action]] = MappingProxyType({
    "UL101": Action("eight_bit_states"),
    "UL102": Action("optimizer_kernel"),
    "UL103": Action("free_gradients"),
    "UL104": Action("free_gradients"),
    "UL106": Action("bf16_parameters"),
    "UL121": Action("chunked_loss"),
    "UL123": Action("flash_attention"),
    "UL125": Action("checkpoint"),
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Failure:
    """A run that ended out of memory: its job, its one process and what its snapshot says, what the
    allocator could have, and what its remedies may take.
    """

    job: Job
    process: Process
    report: SnapshotReport
    limit_bytes: int
    num_steps: int
    deadline_s: float

    @property
    def is_late(self) -> bool:
        return time.monotonic() > self.deadline_s


def try_remedies(
    result: RunReport, job: Job, on_progress: Callable[[str], None] | None = None
) -> RunReport:
    """The run with what came of trying its remedies; the run itself where there are none to try: it
    fits, has several processes, or is under a plan already.
    """
    say = on_progress or (lambda _line: None)
    failure = _failure_of(result, job)
    if failure is None:
        return result
    say("trying remedies: the program again, where memory is without end")
    with run_directory() as directory:
        whole = _run_whole(failure, directory / "whole.pickle")
        if whole is None:
            return result
        findings = _replayed(failure, whole)
        findings = _run_each(failure, findings, say)
    process = replace(failure.process, findings=findings)
    return replace(result, processes=(process,))


def replay_settings(result: RunReport, job: Job) -> RunReport:
    """The run with what a replay says of an allocator setting that its findings advise."""
    from ullage.explain.remedies import sets_allocator
    from ullage.explain.trial import MakesItFit

    findings = [finding for process in result.processes for finding in process.findings]
    is_asked = [sets_allocator(each) and each.is_said(MakesItFit.NOT_KNOWN) for each in findings]
    failure = _failure_of(result, job) if any(is_asked) else None
    if failure is None:
        return result
    # All of them advise the same setting.
    (answer,) = _replay(failure, failure.report, [findings[is_asked.index(True)]])
    tried = tuple(
        replace(each, trial=answer.trial) if is_open else each
        for each, is_open in zip(findings, is_asked, strict=True)
    )
    return replace(result, processes=(replace(failure.process, findings=tried),))


def _failure_of(result: RunReport, job: Job) -> _Failure | None:
    from ullage.explain.remedies import ran_out, room_of
    from ullage.explain.snapshot import explain_snapshot
    from ullage.log.snapshot_reader import read_snapshot

    processes = result.processes
    is_alone = len(processes) == 1 and job.options.plan is None and job.options.rank is None
    if not is_alone or processes[0].oom is None or processes[0].snapshot is None:
        return None
    path = Path(processes[0].snapshot)
    try:  # its record has been read already
        report = explain_snapshot(read_snapshot(path, has_record=False), processes[0].record)
    except SnapshotError:
        return None
    device = next((device for device in report.devices if ran_out(device)), None)
    if device is None or device.shortage is None:
        return None
    steps = device.course.num_steps + _MORE_STEPS
    patience = max(_MIN_PATIENCE_S, _PATIENCE * result.program.wall_s)
    return _Failure(
        job=job,
        process=processes[0],
        report=report,
        limit_bytes=room_of(device.shortage).limit_bytes,
        num_steps=min(steps, job.options.run.steps or steps),
        deadline_s=time.monotonic() + patience,
    )


def _run_whole(failure: _Failure, path: Path) -> SnapshotReport | None:
    """The program where memory is without end; None where it does not come to an end there."""
    from ullage.explain.snapshot import explain_snapshot
    from ullage.explain.verdict import Verdict
    from ullage.log.snapshot_reader import read_snapshot

    job, left_s = _endless(failure), max(failure.deadline_s - time.monotonic(), 0.0)
    job = replace(job, options=replace(job.options, has_snapshot=True, timeout_s=left_s))
    with Forks(job) as forks:
        result, _ = forks.run(job, is_fresh=True, snapshot=path)
    snapshot = result.processes[0].snapshot if result.processes else None
    if result.verdict is not Verdict.FITS or snapshot is None:
        return None
    return explain_snapshot(read_snapshot(Path(snapshot)))


def _endless(failure: _Failure) -> Job:
    job = failure.job
    run = replace(job.options.run, steps=failure.num_steps)
    return replace(
        job,
        device=replace(job.device, is_unlimited=True),
        options=replace(job.options, run=run, has_snapshot=False),
    )


def _replayed(failure: _Failure, whole: SnapshotReport) -> tuple[Finding, ...]:
    """Why it failed, then what is found in the whole trace, with what replays of it say."""
    from ullage.explain.remedies import derive_whole
    from ullage.explain.rules.registry import find_findings

    causes = tuple(finding for finding in failure.process.findings if finding.is_fatal)
    if any(cause.relief is not None for cause in causes):
        causes = _replay(failure, failure.report, causes)
    findings = derive_whole(whole, find_findings(whole), failure.limit_bytes)
    return (*causes, *_replay(failure, whole, findings, failure.limit_bytes))


def _replay(
    failure: _Failure, report: SnapshotReport, findings: Sequence[Finding],
    limit_bytes: int | None = None,
) -> tuple[Finding, ...]:  # fmt: skip
    from ullage.explain.whatif.remedies import replay_trials

    python = failure.job.program.python
    try:
        return replay_trials(report, findings, python=python, limit_bytes=limit_bytes)
    except (EnvironmentProblem, SpecError):  # what is derived is not to be lost for it
        return tuple(findings)


def _run_each(
    failure: _Failure, findings: Sequence[Finding], say: Callable[[str], None]
) -> tuple[Finding, ...]:
    from ullage.explain.trial import MakesItFit

    job, result = _endless(failure), list(findings)
    num_runs = 0
    with Trials(job, end_s=failure.deadline_s) as trials:
        plans = _Plans(trials, job)
        for number, finding in enumerate(findings):
            is_open = finding.is_said(MakesItFit.NOT_KNOWN)
            if not is_open or num_runs == _MAX_RUNS or failure.is_late:
                continue
            try:
                trial = _run_one(failure, plans, finding, say)
            except LimitReached:
                break
            if trial is not None:
                num_runs += 1
                result[number] = replace(finding, trial=trial)
    # Why it failed, then what makes it fit.
    result.sort(
        key=lambda finding: (
            not finding.is_fatal,
            not finding.is_said(MakesItFit.YES),
        )
    )
    return tuple(result)


def _run_one(
    failure: _Failure, plans: _Plans, finding: Finding, say: Callable[[str], None]
) -> Trial | None:
    """A run with the remedy of a finding; None where there is nothing to run."""
    from ullage.explain.remedies import EXPANDABLE, sets_allocator

    if sets_allocator(finding):
        if failure.job.options.run.alloc_conf:
            return None
        say(f"trying remedies: {EXPANDABLE}")
        options = plans.job.options
        options = replace(options, run=replace(options.run, alloc_conf=EXPANDABLE))
        limited = replace(plans.job, device=failure.job.device, options=options)
        (report,) = plans.trials.run([limited])
        return _judge(report, f"run with {EXPANDABLE}")
    action = _technique_of(finding)
    if action is None:
        return None
    say(f"trying remedies: {action.technique}")
    return plans.try_action(action, failure.job.device)


def _technique_of(finding: Finding) -> Action | None:
    """The technique of `ullage fit` that does what a finding advises."""
    if finding.rule.code == "UL123" and _FLOAT16 in finding.change.partition(":")[0]:
        return Action("autocast_float16")
    return _TECHNIQUES.get(finding.rule.code)


class _Plans:
    def __init__(self, trials: Trials, job: Job) -> None:
        self.trials = trials
        self.job = job
        self._measured: Any = None

    def try_action(self, action: Action, device: PhantomDevice) -> Trial:
        """A run on a device under a technique alone, on every block where it is for modules."""
        from ullage.act.techniques.catalog import TECHNIQUES
        from ullage.act.techniques.technique import Place
        from ullage.explain.trial import MakesItFit, Trial
        from ullage.search.costs.measure import Measurements, RunRequest

        run = make_runner(self.trials, self.job)
        if self._measured is None:
            self._measured = Measurements(run)
            self._measured.measure_program()
        if TECHNIQUES[action.technique].place is Place.MODULES:
            action = replace(action, modules=tuple(block.path for block in self._measured.blocks))
        try:
            plan = self._measured.plan((action,))
        except PlanError as error:
            return Trial(MakesItFit.NOT_KNOWN, f"no plan of {action.technique}: {error}")
        (report,) = run([RunRequest(plan, device.gpu)])
        trial = _judge(report, f"run under the technique {action.technique}")
        return replace(trial, plan=plan.document)


def _judge(report: RunReport, how: str) -> Trial:
    from ullage.explain.trial import MakesItFit, Trial
    from ullage.explain.verdict import Verdict
    from ullage.ground.units import format_bytes

    if report.verdict is Verdict.OUT_OF_MEMORY:
        return Trial(MakesItFit.NO, f"{how}: out of memory")
    if report.verdict is not Verdict.FITS or not report.devices:
        return Trial(MakesItFit.NOT_KNOWN, f"{how}, which failed: {report.reason}")
    device = report.devices[0]
    steps = len([step for step in device.steps if step.is_complete])
    left = format_bytes(max(device.headroom_bytes, 0))
    return Trial(
        MakesItFit.YES,
        f"{how} it fits over {steps} step{'s' * (steps != 1)}, {left} left",
        device.totals.peak_allocated_bytes,
    )
