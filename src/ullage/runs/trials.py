"""Runs variants of a program, a few at a time, as a search asks for them.

with Trials(job) as trials:
    as_it_is, planned = trials.run([job, job_with_a_plan])
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor

from ullage.errors import EnvironmentProblem, UllageError
from ullage.explain.run import RunReport
from ullage.explain.verdict import Verdict
from ullage.runs.forks import Forks, Outcome
from ullage.runs.job import Job
from ullage.runs.workers import submit


class Trials:
    """The runs of one program; when the context ends, none of its processes is left here.

    Args:
        job: the unchanged program.
        on_progress: called with a line for each run.
        ahead: sets of variables that plans will use; a process to fork from is started for each.
        executor: whose workers make the runs (workers.py); None: this process does.

    Attributes:
        num_runs: how many have ended.
        outputs: the last lines of each run that failed, by the run's number.
        is_here: whether this process makes the runs.
    """

    def __init__(
        self,
        job: Job,
        on_progress: Callable[[str], None] | None = None,
        ahead: Sequence[Mapping[str, str]] = (),
        executor: Executor | None = None,
    ) -> None:
        self.num_runs = 0
        self.outputs: dict[int, str] = {}
        self.is_here = executor is None
        self._executor = executor
        self._job = job
        self._on_progress = on_progress or (lambda _line: None)
        self._lock = threading.Lock()
        self._forks = Forks(job, ahead)

    def __enter__(self) -> Trials:
        self._forks.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._forks.__exit__()

    @property
    def num_copied(self) -> int:
        """How many runs of this process were forked at the first call of the model."""
        return self._forks.num_copied

    def run(self, jobs: Sequence[Job], *, is_fresh: bool = False) -> list[RunReport]:
        """Runs these, as many at once as there are processors, or workers; in their order.

        is_fresh: none is to be a copy: each starts at the program's first line.

        Raises:
            EnvironmentProblem: a worker is not like this machine, or was lost.
        """
        if self._executor is not None:
            try:
                return self._read(jobs, submit(self._executor, self._job, jobs, is_fresh=is_fresh))
            except UllageError as error:
                raise getattr(error, "cause", error) from None  # Ray wraps what a worker raises
            except Exception as error:
                raise EnvironmentProblem(
                    f"a run did not come to its end on {type(self._executor).__name__}: "
                    f"{type(error).__name__}: {error}".partition("\n")[0]
                ) from error
        if not is_fresh:
            self._forks.prepare()
        with ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)))) as pool:
            pending = [pool.submit(self._forks.run, job, is_fresh=is_fresh) for job in jobs]
            try:
                return self._read(jobs, pending)
            except BaseException:
                self._forks.stop()
                raise

    def _read(self, jobs: Sequence[Job], pending: Sequence[Future[Outcome]]) -> list[RunReport]:
        reports = []
        try:
            for job, future in zip(jobs, pending, strict=True):
                report, output = future.result()
                reports.append(report)
                with self._lock:
                    self.num_runs += 1
                    if report.verdict is Verdict.FAILED:
                        self.outputs[self.num_runs] = output
                self._on_progress(f"{self.num_runs} runs, {_in_words(job)}: {_verdict(report)}")
        except BaseException:
            for future in pending:
                future.cancel()
            raise
        return reports


def _in_words(job: Job) -> str:
    """What was run."""
    plan = job.options.plan
    where = "" if job.device.is_unlimited else f" on {job.device.gpu.slug}"
    how = " with real numbers" if job.options.replays else ""
    return f"{'unchanged' if plan is None else plan.summary}{where}{how}"


def _verdict(result: RunReport) -> str:
    """What came of it."""
    outcome = result.program.plan
    if outcome is not None and outcome.replayed is not None:
        return "trains alike" if outcome.replayed.is_same else outcome.replayed.difference
    return result.reason
