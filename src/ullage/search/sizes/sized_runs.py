"""Runs of a program with any size, for the search for the largest one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from ullage.players.phantom.device import PhantomDevice
from ullage.players.phantom.program import resolve_program
from ullage.search.runner import make_runner
from ullage.search.runs.job import Job
from ullage.search.runs.trials import Trials
from ullage.search.runs.variables import fill_in

if TYPE_CHECKING:
    from ullage.explain.run import RunReport
    from ullage.search.costs.measure import RunRequest

_LARGER = 16


def without_end(device: PhantomDevice) -> PhantomDevice:
    """The device with unlimited memory, and with many times its size.

    Torch limits the address range of an expandable segment by the size of the device, and the
    search measures sizes far beyond the device.
    """
    gpu = replace(device.gpu, total_bytes=_LARGER * device.gpu.total_bytes)
    return replace(device, gpu=gpu, is_unlimited=True)


class SizedRuns:
    """Runs a program with any size, as many runs at once as there are processors.

    The search for plans makes many runs of one size: these have their own trials, which keep the
    program's state at the first call of its model. Other sizes, and all runs on the device, share
    one warm process.
    """

    def __init__(
        self,
        job: Job,
        program: Sequence[str],
        variable: str,
        on_progress: Callable[[str], None] | None,
    ) -> None:
        self._job = job
        self._program = program
        self._variable = variable
        self._report = on_progress or (lambda _line: None)
        self._stack = ExitStack()
        self._held: dict[int, Trials] = {}

    def __enter__(self) -> SizedRuns:
        self._trials = self._start(self._job)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def num_runs(self) -> int:
        return sum(trials.num_runs for trials in (self._trials, *self._held.values()))

    @property
    def outputs(self) -> list[str]:
        """The last lines of runs that failed."""
        trials = (self._trials, *self._held.values())
        return [text for trial in trials for text in trial.outputs.values()]

    def run(self, requests: Sequence[tuple[int, RunRequest]]) -> list[RunReport]:
        """Each run, in their order."""
        sizes = {size for size, _ in requests}
        if len(requests) > 1 and len(sizes) == 1:
            (size,) = sizes
            if size not in self._held:
                self._held[size] = self._start(self._job_at(size))
        with ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)))) as pool:
            return [*pool.map(self._run_one, requests)]

    def _run_one(self, sized_request: tuple[int, RunRequest]) -> RunReport:
        size, request = sized_request
        trials = self._trials if request.gpu else self._held.get(size, self._trials)
        (report,) = make_runner(trials, self._job_at(size))([request])
        self._report(f"{self.num_runs} runs, {self._variable} {size}")
        return report

    def _job_at(self, size: int) -> Job:
        words = words_at(self._program, self._variable, size)
        program = self._job.program
        return replace(self._job, program=resolve_program(words, program.python, program.directory))

    def _start(self, job: Job) -> Trials:
        return self._stack.enter_context(Trials(job))


def words_at(program: Sequence[str], variable: str, size: int) -> list[str]:
    """The words of a program whose variable has this size."""
    return [fill_in(word, {variable: str(size)}) for word in program]
