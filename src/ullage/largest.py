"""Finds the largest batch, or other size, with which a program fits: what `ullage fit --max-batch`
and `ullage.find_largest` are.

    found = ullage.find_largest(["train.py", "--batch-size", "{batch}"], gpu="l4")
    found.size, found.plan
    print(found.text())

Every run is one on the phantom: nothing runs out of memory on a GPU to find this out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack

from ullage.errors import SpecError
from ullage.fits import find_budget, make_runner, make_search_job, read_semantics
from ullage.jobs import Job, ProgramOptions
from ullage.phantom.device import PhantomDevice, choose_device
from ullage.phantom.program import resolve_program
from ullage.plan.cost import with_rates
from ullage.plan.largest import LargestReport
from ullage.sweeps import check_variable, fill_in
from ullage.techniques.plan import Plan
from ullage.techniques.technique import Semantics
from ullage.trials import Trials

if TYPE_CHECKING:
    from ullage.explain.run import RunReport
    from ullage.plan.measure import Wanted

_LARGER = 16


@dataclass(frozen=True, slots=True)
class Largest:
    """A finished search for the largest size."""

    report: LargestReport

    @property
    def size(self) -> int | None:
        """The largest that was seen to fit, as it is or under the plan; None: none was."""
        return None if self.report.best is None else self.report.best.size

    @property
    def plan(self) -> Plan | None:
        """What it needs; None: nothing, or nothing fits."""
        return None if self.report.best is None else self.report.best.plan

    @property
    def exit_code(self) -> int:
        """What the command line exits with: 0 some size fits, 1 none does."""
        return int(self.report.exit_code)

    @property
    def document(self) -> dict[str, Any]:
        """The document, schema "ullage.largest/1"."""
        from ullage.report.largest import largest_document

        return largest_document(self.report)

    def text(self, width: int = 80) -> str:
        """The report for people, without colour."""
        from ullage.report.largest import render_largest

        return render_largest(self.report, width)


def find_largest(
    program: Sequence[str],
    variable: str = "batch",
    *,
    multiple_of: int = 1,
    gpu: str | None = None,
    memory: str | int | None = None,
    capability: str | None = None,
    budget: str | int | None = None,
    allow: str = Semantics.SAME.value,
    rates: str | os.PathLike[str] | None = None,
    python: str | os.PathLike[str] | None = None,
    on_progress: Callable[[str], None] | None = None,
    on_failure: Callable[[str], None] | None = None,
    **options: Unpack[ProgramOptions],
) -> Largest:
    """Finds the largest size with which a program fits a GPU, as it is and under plans.

    Args:
        program: its words, one of them with "{batch}", or with the variable that is named.
        variable: what is varied: "batch", or another name such as "length".
        multiple_of: only multiples of this are tried.
        gpu, memory, capability, budget, rates, python: as for `ullage.fit`.
        allow: as for `ullage.fit`; "none": the program as it is alone, in a handful of runs.
        on_progress: called with a line as runs end.
        on_failure: called with the last output of the program where it failed as it is.
        options: as for `ullage.fit`.

    Raises:
        SpecError: an option, the variable or the program is not possible.
        EnvironmentProblem: no torch for CUDA there, or one that this ullage does not know.
    """
    check_variable(variable, program)
    if multiple_of < 1:
        raise SpecError(f"multiple_of={multiple_of} is not possible; give 1 or more")
    device = choose_device(gpu, memory=memory, capability=capability)
    device = replace(device, gpu=with_rates(device.gpu, rates))
    budget_bytes = find_budget(device, budget)
    allowed = None if allow == "none" else read_semantics(allow)
    words = _words(program, variable, multiple_of)
    job = make_search_job(words, _without_end(device), python, **options)
    from ullage.plan.largest import LargestSearch

    started_s = time.monotonic()
    with _Runs(job, program, variable, on_progress) as runs:
        search = LargestSearch(runs.run, device.gpu, budget_bytes, multiple_of)
        report = search.find(program, variable, allowed)
        if report.failure and on_failure is not None:
            for text in runs.outputs[:1]:
                on_failure(text)
    return Largest(replace(report, num_runs=runs.num_runs, wall_s=time.monotonic() - started_s))


def _without_end(device: PhantomDevice) -> PhantomDevice:
    """The device where memory is without end.

    A size far beyond the device is measured there, and torch reserves no longer ranges for its
    expandable segments than a device is large: so this one says that it is many times as large.
    """
    gpu = replace(device.gpu, total_bytes=_LARGER * device.gpu.total_bytes)
    return replace(device, gpu=gpu, is_unlimited=True)


class _Runs:
    """Runs a program with any sizes, as many at once as there are processors.

    The many runs of one size that plans are looked for with have trials of their own, which keep
    the program as it is at the first call of its model; other sizes, and all runs on the device,
    share one warm process.
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

    def __enter__(self) -> _Runs:
        self._trials = self._start(self._job)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def num_runs(self) -> int:
        return sum(one.num_runs for one in (self._trials, *self._held.values()))

    @property
    def outputs(self) -> list[str]:
        """The last lines of runs that failed."""
        trials = (self._trials, *self._held.values())
        return [text for one in trials for text in one.outputs.values()]

    def run(self, asked: Sequence[tuple[int, Wanted]]) -> list[RunReport]:
        """Each run, in their order."""
        sizes = {size for size, _ in asked}
        if len(asked) > 1 and len(sizes) == 1:
            (size,) = sizes
            if size not in self._held:
                self._held[size] = self._start(self._job_at(size))
        with ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0)))) as pool:
            return [*pool.map(self._run_one, asked)]

    def _run_one(self, asked: tuple[int, Wanted]) -> RunReport:
        size, wanted = asked
        trials = self._trials if wanted.gpu else self._held.get(size, self._trials)
        (report,) = make_runner(trials, self._job_at(size))([wanted])
        self._report(f"{self.num_runs} runs, {self._variable} {size}")
        return report

    def _job_at(self, size: int) -> Job:
        words = _words(self._program, self._variable, size)
        program = self._job.program
        return replace(self._job, program=resolve_program(words, program.python, program.directory))

    def _start(self, job: Job) -> Trials:
        return self._stack.enter_context(Trials(job))


def _words(program: Sequence[str], variable: str, size: int) -> list[str]:
    return [fill_in(word, ((variable, str(size)),)) for word in program]
