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

from ullage.act.techniques.catalog import TECHNIQUES
from ullage.explain.run import RunReport
from ullage.explain.verdict import Verdict
from ullage.ground.errors import EnvironmentProblem, PlanError
from ullage.players.phantom.fork import REFUSAL
from ullage.players.phantom.launch import (
    Child,
    Ended,
    LaunchOptions,
    make_environment,
    run_directory,
    start,
)
from ullage.players.phantom.orphan_processes import end_orphans
from ullage.players.phantom.warm import WarmChild, WarmProcess, start_warm
from ullage.search.runs.job import Job
from ullage.search.runs.one import explain_job

Outcome = tuple[RunReport, str]
"""A run's report, and the last lines that its program wrote."""
_TAIL_BYTES = 4000
# In the directory of a run: what its program wrote.
OUTPUT = "output"
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
        job: the unchanged program.
        ahead: as for `Trials`.
        may_prefork: whether runs may be forked at the first call of the model.

    Attributes:
        num_copied: how many runs were.
        fresh_because: why no run is forked from the imports any more; empty if they are.
        directory: of their files.
    """

    def __init__(
        self, job: Job, ahead: Sequence[Mapping[str, str]] = (), *, may_prefork: bool = True
    ) -> None:
        self.num_copied = 0
        self.fresh_because = ""
        self._may_prefork = may_prefork
        self._job = job
        self._ahead = ahead
        self._stack = ExitStack()
        self._lock = threading.Lock()
        self._running = Running()
        self._sources: dict[object, _Source] = {}
        self._num_started = 0
        self._is_prepared = False

    def __enter__(self) -> Forks:
        self.directory = self._stack.enter_context(run_directory())
        self._stack.callback(end_orphans, self.directory)
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

    @property
    def is_stopped(self) -> bool:
        """True if they were ended."""
        return self._running.is_stopped

    def run(self, job: Job, *, is_fresh: bool, snapshot: Path | None = None) -> Outcome:
        """A run, as a copy if it can be one; KeyboardInterrupt where the runs are ended."""
        for source in () if is_fresh else self._sources_of(job):
            with self._place() as run_dir:
                ended = self._copy(source, job, run_dir)
                if ended is not None:
                    result = self._explain(job, run_dir, ended, snapshot)
                    if _is_believed(result, job, source):
                        with self._lock:
                            self.num_copied += source.is_preforked
                        return result, last_lines(run_dir / OUTPUT)
        with self._place() as run_dir:
            environment = make_environment(run_dir, job.device, job.build, job.options)
            with start(job.program, environment, output=run_dir / OUTPUT) as child:
                ended = self._running.wait(child, job.options.timeout_s)
            return self._explain(job, run_dir, ended, snapshot), last_lines(run_dir / OUTPUT)

    def _explain(
        self, job: Job, run_dir: Path, ended: tuple[int, Ended], snapshot: Path | None
    ) -> RunReport:
        if self.is_stopped:
            raise KeyboardInterrupt
        return explain_job(job, run_dir, *ended, snapshot)

    @contextmanager
    def _place(self) -> Iterator[Path]:
        with self._lock:
            self._num_started += 1
            directory = self.directory / str(self._num_started)
        directory.mkdir()
        yield directory
        shutil.rmtree(directory, ignore_errors=True)

    def _sources_of(self, job: Job) -> Iterator[_Source]:
        """The processes that a run can be forked from, each started on first use."""
        is_searched = job.device.is_unlimited or job.device.gpu == self._job.device.gpu
        if self._may_prefork and is_searched and _can_be_preforked(job, self._job):
            yield self._source(job, is_preforked=True)
        if at_start(job) == at_start(self._job) and not self.fresh_because:
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
        directory = self.directory / f"source{len(self._sources)}"
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
        except EnvironmentProblem as error:
            if not source.is_preforked:
                self.fresh_because = str(error)
            return None


class Running:
    """The running jobs of all threads; stopping them also stops those that start later."""

    def __init__(self) -> None:
        self.is_stopped = False
        self._lock = threading.Lock()
        self._children: set[Child | WarmChild] = set()

    def stop(self) -> None:
        """Ends all."""
        with self._lock:
            self.is_stopped = True
            for child in self._children:
                child.stop()

    def wait(self, child: Child | WarmChild, timeout_s: float | None = None) -> tuple[int, Ended]:
        """Waits for a run's end; from its start on it can be stopped, and is after `timeout_s`."""
        pid = child.pid
        with self._lock:
            if self.is_stopped:
                child.stop()
            self._children.add(child)
        try:
            if isinstance(child, WarmChild):
                return pid, child.wait(timeout_s)
            with child.limited(timeout_s):
                return pid, child.wait()
        finally:
            with self._lock:
                self._children.discard(child)

    def fork(
        self, warm: WarmProcess, job: Job, run_dir: Path, changes: Mapping[str, str]
    ) -> tuple[int, Ended]:
        """Forks a run from a warm process, with other variables than that has, and waits for it.

        Raises:
            EnvironmentProblem: that process is gone, or is not what the program would have imported
                torch in.
        """
        child = warm.fork(_arguments(job), changes, run_dir / OUTPUT)
        pid, ended = self.wait(child, job.options.timeout_s)
        left_running, refusal = end_orphans(run_dir), run_dir / REFUSAL
        if refusal.exists():
            (run_dir / OUTPUT).unlink(missing_ok=True)
            raise EnvironmentProblem(refusal.read_text(encoding="utf-8"))
        return pid, replace(ended, left_running=left_running)


def at_start(job: Job) -> tuple[object, ...]:
    """All that the interpreter of a job is started with: equal ones can share a warm process."""
    program, options = job.program, job.options
    of_plan = {} if options.plan is None else options.plan.variables
    variables = tuple(sorted({**options.variables, **of_plan}.items()))
    return program.python, program.directory, _head(job), options.run.alloc_conf, variables


def _head(job: Job) -> tuple[str, ...]:
    words = job.program.arguments
    return words[: 2 if words[0] == "-m" else 1]


def _arguments(job: Job) -> tuple[str, ...]:
    return job.program.arguments[len(_head(job)) :]


def _without_plan(options: LaunchOptions) -> LaunchOptions:
    return replace(options, plan=None, describes=False, replays=False)


def _can_be_preforked(job: Job, first: Job) -> bool:
    """True if a run differs from the first in nothing that its program could see before it first
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
    """True if what a copy showed is what a run from the start would."""
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


def last_lines(path: Path) -> str:
    """The last lines that a program wrote."""
    try:
        text = path.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
    except OSError:
        return ""
    return "\n".join(text.splitlines()[-20:])
