"""Finds the largest batch, or other size, with which a program fits: what `ullage fit --max-batch`
and `ullage.find_largest` are.

    found = ullage.find_largest(["train.py", "--batch-size", "{batch}"], gpu="l4")
    found.size, found.plan
    print(found.text())

Every run is one on the phantom: nothing runs out of memory on a GPU to find this out.

`find_ladder`, which is `ullage fit --ladder`, finds the rungs of a guard by such runs:

    result = ullage.find_ladder(["train.py", "--length", "{length}"], "length", (512, 1024, 2048),
                                gpu="l4")
    result.ladder.save("ladder.json")
    with ullage.guard(model, optimizer, plans="ladder.json") as guard: ...
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack

from ullage.errors import SpecError
from ullage.phantom.device import choose_device
from ullage.plan.budget import find_budget, read_semantics
from ullage.plan.runner import make_search_job
from ullage.plan.sizes.largest import LargestReport
from ullage.plan.sizes.rungs import LadderReport, LadderSearch
from ullage.plan.sizes.sized_runs import SizedRuns, without_end, words_at
from ullage.runs.job import ProgramOptions
from ullage.runs.variables import check_variable
from ullage.techniques.ladder_file import LadderFile
from ullage.techniques.plan import Plan
from ullage.techniques.technique import Semantics

if TYPE_CHECKING:
    pass

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
        """The document, schema "ullage.api.largest/1"."""
        from ullage.report.document.largest import largest_document

        return largest_document(self.report)

    def text(self, width: int = 80) -> str:
        """The report for people, without colour."""
        from ullage.answers.text import render
        from ullage.report.text.largest import largest_blocks

        return render(largest_blocks(self.report), width)


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
        gpu, memory, capability, budget, python: as for `ullage.fit`.
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
    budget_bytes = find_budget(device, budget)
    allowed = None if allow == "none" else read_semantics(allow)
    words = words_at(program, variable, multiple_of)
    job = make_search_job(words, without_end(device), python, **options)
    from ullage.plan.sizes.largest import LargestSearch

    started_s = time.monotonic()
    with SizedRuns(job, program, variable, on_progress) as runs:
        search = LargestSearch(runs.run, device.gpu, budget_bytes, multiple_of)
        report = search.find(program, variable, allowed)
        if report.failure and on_failure is not None:
            for text in runs.outputs[:1]:
                on_failure(text)
    return Largest(replace(report, num_runs=runs.num_runs, wall_s=time.monotonic() - started_s))


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
        from ullage.report.document.ladder import ladder_document

        return ladder_document(self.report, self.ladder)

    def text(self, width: int = 80) -> str:
        """The report for people, without colour."""
        from ullage.answers.text import render
        from ullage.report.text.ladder import ladder_blocks

        return render(ladder_blocks(self.report), width)


def find_ladder(
    program: Sequence[str],
    variable: str,
    sizes: Sequence[int],
    *,
    gpu: str | None = None,
    memory: str | int | None = None,
    capability: str | None = None,
    budget: str | int | None = None,
    python: str | os.PathLike[str] | None = None,
    on_progress: Callable[[str], None] | None = None,
    on_failure: Callable[[str], None] | None = None,
    **options: Unpack[ProgramOptions],
) -> FoundLadder:
    """Finds the plans that a guard goes to when a batch is too large, and proves each.

    Args:
        program: its words, one of them with the variable in braces, such as "{length}".
        variable: what is varied: "length", "batch" or another name.
        sizes: its values, the smallest first; each rung runs with each of them.
        gpu, memory, capability, budget, python: as for `ullage.fit`.
        on_progress: called with a line as runs end.
        on_failure: called with the last output of the program where it failed as it is.
        options: as for `ullage.fit`.

    Raises:
        SpecError: an option, the variable, the sizes or the program is not possible.
        EnvironmentProblem: no torch for CUDA there, or one that this ullage does not know.
    """
    check_variable(variable, program)
    if not sizes or [*sizes] != sorted(set(sizes)) or sizes[0] < 1:
        raise SpecError(f"sizes={[*sizes]} are not possible; give some, from small to large")
    device = choose_device(gpu, memory=memory, capability=capability)
    budget_bytes = find_budget(device, budget)
    words = words_at(program, variable, sizes[-1])
    job = make_search_job(words, without_end(device), python, **options)
    started_s = time.monotonic()
    with SizedRuns(job, program, variable, on_progress) as runs:
        report = LadderSearch(runs.run, device.gpu, budget_bytes, sizes).find(program, variable)
        if report.failure and on_failure is not None:
            for text in runs.outputs[:1]:
                on_failure(text)
    return FoundLadder(replace(report, num_runs=runs.num_runs, wall_s=time.monotonic() - started_s))
