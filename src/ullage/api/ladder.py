"""Finds the rungs of a guard's ladder: what `ullage fit --ladder` and `ullage.find_ladder` are.

    found = ullage.find_ladder(["train.py", "--length", "{length}"], "length", (512, 1024, 2048),
                               gpu="l4")
    found.ladder.save("ladder.json")
    with ullage.guard(model, optimizer, plans="ladder.json") as guard: ...

Every run is one on the phantom.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

from ullage.errors import SpecError
from ullage.phantom.device import choose_device
from ullage.plan.budget import find_budget
from ullage.plan.costs.roofline import with_rates
from ullage.plan.runner import make_search_job
from ullage.plan.sizes.rungs import LadderReport, LadderSearch
from ullage.plan.sizes.sized_runs import SizedRuns, without_end, words_at
from ullage.runs.job import ProgramOptions
from ullage.runs.variables import check_variable
from ullage.techniques.ladder_file import LadderFile


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
        """The document: the ladder, schema "ullage.ladder/1", and how it was found."""
        from ullage.report.document.ladder import ladder_document

        return ladder_document(self.report, self.ladder)

    def text(self, width: int = 80) -> str:
        """The report for people, without colour."""
        from ullage.report.text.ladder import render_ladder

        return render_ladder(self.report, width)


def find_ladder(
    program: Sequence[str],
    variable: str,
    sizes: Sequence[int],
    *,
    gpu: str | None = None,
    memory: str | int | None = None,
    capability: str | None = None,
    budget: str | int | None = None,
    rates: str | os.PathLike[str] | None = None,
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
        gpu, memory, capability, budget, rates, python: as for `ullage.fit`.
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
    device = replace(device, gpu=with_rates(device.gpu, rates))
    budget_bytes = find_budget(device, budget)
    words = words_at(program, variable, sizes[-1])
    job = make_search_job(words, without_end(device), python, **options)
    job = replace(job, options=replace(job.options, has_clock=True))
    started_s = time.monotonic()
    with SizedRuns(job, program, variable, on_progress) as runs:
        report = LadderSearch(runs.run, device.gpu, budget_bytes, sizes).find(program, variable)
        if report.failure and on_failure is not None:
            for text in runs.outputs[:1]:
                on_failure(text)
    return FoundLadder(replace(report, num_runs=runs.num_runs, wall_s=time.monotonic() - started_s))
