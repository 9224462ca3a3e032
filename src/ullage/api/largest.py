"""Finds the largest batch, or other size, with which a program fits: what `ullage fit --max-batch`
and `ullage.find_largest` are.

    found = ullage.find_largest(["train.py", "--batch-size", "{batch}"], gpu="l4")
    found.size, found.plan
    print(found.text())

Every run is one on the phantom: nothing runs out of memory on a GPU to find this out.

`find_ladder`, which is `ullage fit --ladder`, finds the rungs of a guard by such runs:

    result = ullage.find_ladder(["train.py", "--length", "{length}"], gpu="l4",
                                ladder={"length": (512, 1024, 2048)})
    result.ladder.save("ladder.json")
    with ullage.guard(model, optimizer, plans="ladder.json") as guard: ...
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ullage.errors import SpecError
from ullage.phantom.device import PhantomDevice, choose_device
from ullage.plan.budget import find_budget, read_semantics
from ullage.plan.runner import make_search_job
from ullage.plan.sizes.largest import LargestReport
from ullage.plan.sizes.rungs import LadderReport, LadderSearch
from ullage.plan.sizes.sized_runs import SizedRuns, without_end, words_at
from ullage.protocol.options.fit import FitOptions
from ullage.protocol.options.option import share, takes
from ullage.protocol.options.run import RunOptions
from ullage.protocol.plain import document_of
from ullage.runs.job import Job
from ullage.runs.variables import check_variable
from ullage.techniques.ladder_file import LadderFile
from ullage.techniques.plan import Plan


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
        """The document, schema "ullage.api.largest/1"."""
        return document_of(self.report)

    def text(self, width: int = 80) -> str:
        """The report for people, without colour."""
        from ullage.answers.text import render
        from ullage.report.text.largest import largest_blocks

        return render(largest_blocks(self.report), width)


@takes(FitOptions)
def find_largest(options: FitOptions) -> Largest:
    """Finds the largest size with which a program fits a GPU, as it is and under plans: `largest`
    names what is varied (default: batch), which a word of the program has in braces. With `allow`
    none the program is run as it is alone, in a handful of runs.

    Raises:
        SpecError: an option, the variable or the program is not possible.
        EnvironmentProblem: no torch for CUDA there, or one that this ullage does not know.
    """
    _check_goes_with(options, "--max-batch and --largest")
    program, variable = options.program, options.largest or "batch"
    multiple_of = 1 if options.multiple_of is None else options.multiple_of
    check_variable(variable, program)
    if multiple_of < 1:
        raise SpecError(f"multiple_of={multiple_of} is not possible; give 1 or more")
    allowed = None if options.allow == "none" else read_semantics(options.allow)
    device, budget_bytes, job = _make_job(options, words_at(program, variable, multiple_of))
    from ullage.plan.sizes.largest import LargestSearch

    started_s = time.monotonic()
    with SizedRuns(job, program, variable, options.on_progress) as runs:
        search = LargestSearch(runs.run, device.gpu, budget_bytes, multiple_of)
        report = search.find(program, variable, allowed)
        _tell_failure(options, report.failure, runs)
    wall_s = round(time.monotonic() - started_s, 3)
    return Largest(replace(report, num_runs=runs.num_runs, wall_s=wall_s))


def _check_goes_with(options: FitOptions, what: str, *others: tuple[str, bool]) -> None:
    """Raises SpecError for an option of the search for the fastest plan, which does not go with
    what is asked for, or for one of the others: flags, and whether they are given.
    """
    for flag, is_given in (
        *others,
        ("--objective", options.objective != "time"),
        ("--price", options.price is not None),
        ("--smallest-gpu", options.smallest_gpu),
        ("--gpus", options.gpus != 1),
        ("--executor", options.executor is not None),
        ("--minutes", options.minutes is not None),
    ):
        if is_given:
            raise SpecError(f"{flag} does not go with {what}; leave it out")


def _make_job(options: FitOptions, words: Sequence[str]) -> tuple[PhantomDevice, int, Job]:
    """The device, its budget, and the job with these words, which no memory ends."""
    device = choose_device(options.gpu, memory=options.memory, capability=options.capability)
    run = share(RunOptions, options, program=words)
    return device, find_budget(device, options.budget), make_search_job(run, without_end(device))


def _tell_failure(options: FitOptions, failure: object, runs: SizedRuns) -> None:
    if failure and options.on_failure is not None:
        for text in runs.outputs[:1]:
            options.on_failure(text)


@dataclass(frozen=True, slots=True)
class FoundLadder:
    """A finished search for a ladder."""

    report: LadderReport

    @property
    def ladder(self) -> LadderFile:
        """The rungs and their proofs, to be written to a file."""
        report = self.report
        return LadderFile(
            torch=report.torch,
            gpu=report.gpu.slug,
            total_bytes=report.gpu.total_bytes,
            budget_bytes=report.budget_bytes,
            program=report.program,
            variable=report.variable,
            rungs=report.rungs,
        )

    @property
    def exit_code(self) -> int:
        """What the command line exits with: 0 a rung is proved for the largest size, 1 none is."""
        return int(self.report.exit_code)

    @property
    def document(self) -> dict[str, Any]:
        """The document: the ladder, schema "ullage.find_ladder/1", and how it was found."""
        return document_of(self.report) | self.ladder.document

    def text(self, width: int = 80) -> str:
        """The report for people, without colour."""
        from ullage.answers.text import render
        from ullage.report.text.ladder import ladder_blocks

        return render(ladder_blocks(self.report), width)


@takes(FitOptions)
def find_ladder(options: FitOptions) -> FoundLadder:
    """Finds the plans that a guard goes to when a batch is too large, and proves each: `ladder` has
    what is varied, and its sizes, the smallest first; each rung runs with each of them.

    Raises:
        SpecError: an option, the variable, the sizes or the program is not possible.
        EnvironmentProblem: no torch for CUDA there, or one that this ullage does not know.
    """
    _check_goes_with(
        options,
        "--ladder",
        ("--max-batch and --largest", options.largest is not None),
        ("--multiple-of", options.multiple_of is not None),
        ("--allow", options.allow != "same"),
    )
    if options.ladder is None or len(options.ladder) != 1:
        raise SpecError(f"ladder={options.ladder!r}; expected one variable and its sizes")
    program, ((variable, sizes),) = options.program, options.ladder.items()
    check_variable(variable, program)
    if not sizes or [*sizes] != sorted(set(sizes)) or sizes[0] < 1:
        raise SpecError(f"sizes={[*sizes]} are not possible; give some, from small to large")
    device, budget_bytes, job = _make_job(options, words_at(program, variable, sizes[-1]))
    started_s = time.monotonic()
    with SizedRuns(job, program, variable, options.on_progress) as runs:
        report = LadderSearch(runs.run, device.gpu, budget_bytes, sizes).find(program, variable)
        _tell_failure(options, report.failure, runs)
    wall_s = round(time.monotonic() - started_s, 3)
    return FoundLadder(replace(report, num_runs=runs.num_runs, wall_s=wall_s))
