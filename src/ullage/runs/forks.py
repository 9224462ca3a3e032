"""Runs of one program, forked where that is possible: from a process that waits at the first call
of the model (prefork.py) where the runs differ only in their plan; else from one that has imported
torch. Other runs are started afresh, and so is a run whose fork failed.

    with Forks(job) as forks:
        report, output = forks.run(job_with_a_plan, is_fresh=False)
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ullage.errors import EnvironmentProblem, PlanError
from ullage.explain.run import RunReport
from ullage.explain.verdict import Verdict
from ullage.phantom.launch import Ended, LaunchOptions, make_environment, run_directory, start
from ullage.phantom.orphan_processes import end_orphans
from ullage.phantom.warm import WarmProcess, start_warm
from ullage.runs.job import Job
from ullage.runs.one import explain_job
from ullage.runs.parallel import OUTPUT, Running, at_start, last_lines
from ullage.techniques.catalog import TECHNIQUES

Outcome = tuple[RunReport, str]
"""A run's report, and the last lines that its program wrote."""
_REFUSED = f"{PlanError.__module__}.{PlanError.__qualname__}"


@dataclass(frozen=True, slots=True)
class _Source:
    """A process that runs are forked from, and its environment."""

    warm: WarmProcess
    environment: dict[str, str]
    is_preforked: bool


class Forks:
    """The runs of one program in children of this process.

    Args:
        job: the program as it is.
        ahead: as for `Trials`.

    Attributes:
        num_copied: how many runs were forked at the first call of the model.
    """

    def __init__(self, job: Job, ahead: Sequence[Mapping[str, str]] = ()) -> None:
        self.num_copied = 0
        self._job = job
        self._ahead = ahead
        self._stack = ExitStack()
        self._lock = threading.Lock()
        self._running = Running()
        self._sources: dict[object, _Source] = {}
        self._num_started = 0
        self._is_prepared = False

    def __enter__(self) -> Forks:
        self._directory = self._stack.enter_context(run_directory())
        self._stack.callback(end_orphans, self._directory)
        # A child ends with the thread that started it: this one goes on as long as the context.
        self._starter = self._stack.enter_context(ThreadPoolExecutor(1))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def stop(self) -> None:
        """Ends the runs, also those that start later."""
        self._running.stop()

    def prepare(self) -> None:
        """Starts the processes that later runs are forked from; a second call starts nothing."""
        job = self._job
        ahead, self._ahead = ({}, *self._ahead) if not self._is_prepared else (), ()
        self._is_prepared = True
        for variables in ahead if _can_be_preforked(job, job) else ():
            options = replace(job.options, variables={**job.options.variables, **variables})
            self._source(replace(job, options=options), is_preforked=True)

    def run(self, job: Job, *, is_fresh: bool) -> Outcome:
        """A run, as a copy if it can be one."""
        for source in () if is_fresh else self._sources_of(job):
            with self._place() as run_dir:
                ended = self._copy(source, job, run_dir)
                if ended is not None:
                    result = explain_job(job, run_dir, *ended, None)
                    if self._running.is_stopped or _is_believed(result, job, source):
                        with self._lock:
                            self.num_copied += source.is_preforked
                        return result, last_lines(run_dir / OUTPUT)
        with self._place() as run_dir:
            environment = make_environment(run_dir, job.device, job.build, job.options)
            with start(job.program, environment, output=run_dir / OUTPUT) as child:
                ended = self._running.wait(child)
            return explain_job(job, run_dir, *ended, None), last_lines(run_dir / OUTPUT)

    @contextmanager
    def _place(self) -> Iterator[Path]:
        """A directory of a run."""
        with self._lock:
            self._num_started += 1
            directory = self._directory / str(self._num_started)
        directory.mkdir()
        yield directory
        shutil.rmtree(directory, ignore_errors=True)

    def _sources_of(self, job: Job) -> Iterator[_Source]:
        """The processes that a run can be forked from, each started on first use."""
        is_searched = job.device.is_unlimited or job.device.gpu == self._job.device.gpu
        if is_searched and _can_be_preforked(job, self._job):
            yield self._source(job, is_preforked=True)
        if at_start(job) == at_start(self._job):
            yield self._source(job, is_preforked=False)

    def _source(self, job: Job, *, is_preforked: bool) -> _Source:
        key = at_start(job), job.device.gpu if is_preforked else None
        with self._lock:
            if key not in self._sources:
                self._sources[key] = self._start(job, is_preforked=is_preforked)
            return self._sources[key]

    def _start(self, job: Job, *, is_preforked: bool) -> _Source:
        of_plan = {} if job.options.plan is None else job.options.plan.variables
        options = replace(
            _without_plan(job.options), variables={**job.options.variables, **of_plan}
        )
        directory = self._directory / f"source{len(self._sources)}"
        device = replace(job.device, is_unlimited=True)
        environment = make_environment(directory, device, job.build, options)
        starting = start_warm(self._job.program, environment, is_preforked=is_preforked)
        warm = self._starter.submit(self._stack.enter_context, starting).result()
        return _Source(warm, environment, is_preforked)

    def _copy(self, source: _Source, job: Job, run_dir: Path) -> tuple[int, Ended] | None:
        """A forked run; None where the process to fork from has ended."""
        environment = make_environment(run_dir, job.device, job.build, job.options)
        changes = dict(environment.items() - source.environment.items())
        try:
            return self._running.fork(source.warm, job, run_dir, changes)
        except EnvironmentProblem:
            return None


def _without_plan(options: LaunchOptions) -> LaunchOptions:
    return replace(options, plan=None, describes=False, replays=False)


def _can_be_preforked(job: Job, first: Job) -> bool:
    """Whether a run differs from the first in nothing that its program could see before it first
    calls its model.
    """
    actions = () if job.options.plan is None else job.options.plan.actions
    techniques = [TECHNIQUES[action.technique] for action in actions]
    return (
        job.program == first.program
        and job.options.rank is None
        and not job.options.has_snapshot
        and _without_plan(job.options) == _without_plan(first.options)
        and all(technique.start is None and technique.on_move is None for technique in techniques)
    )


def _is_believed(report: RunReport, job: Job, source: _Source) -> bool:
    """Whether what a copy showed is what a run from the start would."""
    if job.options.replays:
        outcome = report.program.plan
        return outcome is not None and outcome.replayed is not None
    if not source.is_preforked:
        return True
    gpu = job.device.gpu
    is_over = any(device.peak_used_bytes > gpu.total_bytes for device in report.devices)
    if is_over and not job.device.is_unlimited:  # by what came before the copy
        return False
    ended = report.program_exit
    is_refused = ended is not None and ended.exception == _REFUSED
    return report.verdict is not Verdict.FAILED or is_refused
