"""Runs variants of a program, a few at a time, as a search asks for them.

with Trials(job) as trials:
    as_it_is, planned = trials.run([job, job_with_a_plan])
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait

from ullage.explain.run import RunReport
from ullage.explain.verdict import Verdict
from ullage.ground.errors import EnvironmentProblem, UllageError
from ullage.search.runs.forks import Forks, Outcome
from ullage.search.runs.job import Job
from ullage.search.runs.search import LimitReached
from ullage.search.runs.workers import submit

# What is run after the time limit, such as the replay of the best plan, may take so long.
_FINISH_S = 60.0


class Trials:
    """The runs of one program; when the context ends, none of its processes is left here.

    Args:
        job: the unchanged program.
        on_progress: called with a line for each run.
        ahead: sets of variables that plans will use; a process to fork from is started for each.
        executor: whose workers make the runs (workers.py); None: this process does.
        end_s: the time limit, by time.monotonic(); a run that was begun before has as long again as
            the longest before it took.

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
        end_s: float = math.inf,
    ) -> None:
        self.num_runs = 0
        self.outputs: dict[int, str] = {}
        self.is_here = executor is None
        self._executor = executor
        self._end_s, self._longest_s = end_s, 0.0
        self._given_up: LimitReached | None = None
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
        """The number of runs of this process that were forked at the model's first call."""
        return self._forks.num_copied

    def run(self, jobs: Sequence[Job], *, is_fresh: bool = False) -> list[RunReport]:
        """Runs these, as many at once as there are processors, or workers; in their order.

        is_fresh: none is to be a copy: each starts at the program's first line.

        Raises:
            EnvironmentProblem: a worker is not like this machine, or was lost.
            LimitReached: the runs had not ended at the time limit; no others are made from then on.
        """
        if self._given_up is not None:
            raise self._given_up
        began_s = time.monotonic()
        reports = self._run(jobs, is_fresh=is_fresh)
        self._longest_s = max(self._longest_s, time.monotonic() - began_s)
        return reports

    def _run(self, jobs: Sequence[Job], *, is_fresh: bool) -> list[RunReport]:
        if self._executor is not None:
            try:
                return self._read(jobs, self._hand_over(self._executor, jobs, is_fresh=is_fresh))
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

    def _hand_over(
        self, executor: Executor, jobs: Sequence[Job], *, is_fresh: bool
    ) -> list[Future[Outcome]]:
        """Futures of runs on an executor, which, unlike its own, can all be waited for."""
        pending: list[Future[Outcome]] = [Future() for _ in jobs]

        def follow() -> None:
            try:
                theirs = submit(executor, self._job, jobs, is_fresh=is_fresh)
                for ours, future in zip(pending, theirs, strict=True):
                    ours.add_done_callback(
                        lambda ours, to=future: ours.cancelled() and to.cancel()  # type: ignore[misc]
                    )
                for ours, future in zip(pending, theirs, strict=True):
                    ours.set_result(future.result())
            except BaseException as error:  # whatever an executor raises
                for ours in pending:
                    if not ours.done():
                        ours.set_exception(error)

        threading.Thread(target=follow, daemon=True).start()
        return pending

    def _wait(self, pending: Sequence[Future[Outcome]], end_s: float) -> None:
        """Waits for the first of these; raises LimitReached where it does not end in time."""
        left_s = None if math.isinf(end_s) else max(0.0, end_s - time.monotonic())
        if not wait(pending[:1], left_s).done:
            where = "here" if self._executor is None else f"on {type(self._executor).__name__}"
            many = f"{len(pending)} run{'s' * (len(pending) > 1)}"
            self._given_up = LimitReached(
                f"the time limit was reached while {many} {where} had not ended; see whether the "
                "program hangs, or give the search more time, such as: --minutes 60"
            )
            raise self._given_up

    def _read(self, jobs: Sequence[Job], pending: Sequence[Future[Outcome]]) -> list[RunReport]:
        # What was begun in time may end as late as the longest before it would have.
        now_s, late_s = time.monotonic(), self._longest_s
        if now_s >= self._end_s and self.num_runs:
            late_s = max(late_s, _FINISH_S)
        end_s = max(now_s, self._end_s) + late_s
        reports = []
        try:
            for number, (job, future) in enumerate(zip(jobs, pending, strict=True)):
                self._wait(pending[number:], end_s)
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
    plan = job.options.plan
    where = "" if job.device.is_unlimited else f" on {job.device.gpu.slug}"
    how = " with real numbers" if job.options.replays else ""
    return f"{'unchanged' if plan is None else plan.summary}{where}{how}"


def _verdict(result: RunReport) -> str:
    outcome = result.program.plan
    if outcome is not None and outcome.replayed is not None:
        return "trains alike" if outcome.replayed.is_same else outcome.replayed.difference
    return result.reason
