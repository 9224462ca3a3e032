"""Runs a program again and again in slightly other ways, a few at a time, as a search wants them.

Unlike a sweep, it is not known beforehand what will be run. Whatever can be is forked from a warm
process; what needs another start of the interpreter, such as other settings of the allocator, and a
program that sets variables before it imports torch, is started afresh.

    with Trials(job) as trials:
        as_it_is, planned = trials.run([job, job_with_a_plan])
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from ullage.api import Run, explain_job
from ullage.errors import EnvironmentProblem
from ullage.jobs import Job
from ullage.parallel import OUTPUT, Running, at_start, last_lines
from ullage.phantom.launch import Ended, make_environment, run_directory, start
from ullage.phantom.strays import end_strays
from ullage.phantom.warm import WarmProcess, start_warm


class Trials:
    """The runs of one program; a context, after which nothing of it runs any more.

    Args:
        job: the program as it is.
        on_progress: called with a line as runs end.

    Attributes:
        num_runs: how many have ended.
        outputs: the last lines of each run that failed, by the run's number.
    """

    def __init__(self, job: Job, on_progress: Callable[[str], None] | None = None) -> None:
        self.num_runs = 0
        self.outputs: dict[int, str] = {}
        self._job = job
        self._on_progress = on_progress or (lambda _line: None)
        self._stack = ExitStack()
        self._lock = threading.Lock()
        self._running = Running()
        self._warm: WarmProcess | None = None
        self._num_started = 0

    def __enter__(self) -> Trials:
        self._directory = self._stack.enter_context(run_directory())
        self._stack.callback(end_strays, self._directory)
        job = self._job
        self._environment = make_environment(self._directory, job.device, job.build, job.options)
        self._warm = self._stack.enter_context(start_warm(job.program, self._environment))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, jobs: Sequence[Job]) -> list[Run]:
        """Runs these, as many at once as there are processors; in their order."""
        with ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)))) as pool:
            pending = [pool.submit(self._run, job) for job in jobs]
            try:
                return [one.result() for one in pending]
            except BaseException:
                for one in pending:
                    one.cancel()
                self._running.stop()
                raise

    def _run(self, job: Job) -> Run:
        with self._lock:
            number = self._num_started = self._num_started + 1
        run_dir = self._directory / str(number)
        run_dir.mkdir()
        output = run_dir / OUTPUT
        environment = make_environment(run_dir, job.device, job.build, job.options)
        ended = self._fork(job, run_dir, environment)
        if ended is None:
            with start(job.program, environment, output=output) as child:
                ended = self._running.wait(child)
        result = explain_job(job, run_dir, *ended, None)
        if any(one.record.changed_variables for one in result.report.processes):
            self._warm = None  # its torch is another
        with self._lock:
            self.num_runs += 1
            if result.verdict.value == "failed":
                self.outputs[number] = last_lines(output)
        self._on_progress(f"{self.num_runs} runs")
        shutil.rmtree(run_dir, ignore_errors=True)
        return result

    def _fork(
        self, job: Job, run_dir: Path, environment: dict[str, str]
    ) -> tuple[int, Ended] | None:
        """A run forked from the warm process; None where it needs a start of its own."""
        if self._warm is None or at_start(job) != at_start(self._job):
            return None
        changes = dict(environment.items() - self._environment.items())
        try:
            return self._running.fork(self._warm, job, run_dir, changes)
        except EnvironmentProblem:
            self._warm = None
            return None
