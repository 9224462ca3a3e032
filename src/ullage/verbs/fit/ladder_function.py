"""Finds the rungs of a guard, each proved by runs on the phantom: what `ullage fit --ladder` and
`ullage.find_ladder` are.

    result = ullage.find_ladder(["train.py", "--length", "{length}"], gpu="l4",
                                ladder={"length": (512, 1024, 2048)})
    result.ladder.save("ladder.json")
    with ullage.guard(model, optimizer, plans="ladder.json") as guard: ...
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ullage.act.techniques.ladder_file import LadderFile
from ullage.answers.verb_answer import VerbAnswer
from ullage.ground.errors import SpecError
from ullage.ground.protocol.option import takes
from ullage.ground.protocol.plain import document_of
from ullage.search.runs.variables import check_variable
from ullage.search.sizes.rungs import LadderReport, LadderSearch
from ullage.search.sizes.sized_runs import SizedRuns, words_at
from ullage.verbs.fit.options import FitOptions
from ullage.verbs.largest.function import make_sized_job, tell_failure

if TYPE_CHECKING:
    from ullage.answers.block_kinds import Blocks


@dataclass(frozen=True, slots=True)
class FoundLadder(VerbAnswer):
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
        """The exit code of the command line: 0 a rung is proved for the largest size, 1 none is."""
        return int(self.report.exit_code)

    @property
    def document(self) -> dict[str, Any]:
        """The document: the ladder, schema "ullage.find_ladder/1", and how it was found."""
        return document_of(self.report) | self.ladder.document

    def blocks(self, *, full: bool = False) -> Blocks:
        """The blocks of its report."""
        from ullage.verbs.fit.text import ladder_blocks

        return ladder_blocks(self.report)


@takes(FitOptions)
def find_ladder(options: FitOptions) -> FoundLadder:
    """Finds the plans that a guard goes to when a batch is too large, and proves each: `ladder` has
    what is varied, and its sizes, the smallest first; each rung runs with each of them.

    Raises:
        SpecError: an option, the variable, the sizes or the program is not possible.
        EnvironmentProblem: no torch for CUDA there, or one that this ullage does not know.
    """
    _check_goes_with(options)
    if options.ladder is None or len(options.ladder) != 1:
        raise SpecError(f"ladder={options.ladder!r}; expected one variable and its sizes")
    program, ((variable, sizes),) = options.program, options.ladder.items()
    check_variable(variable, program)
    if not sizes or [*sizes] != sorted(set(sizes)) or sizes[0] < 1:
        raise SpecError(f"sizes={[*sizes]} are not possible; give some, from small to large")
    device, budget_bytes, job = make_sized_job(options, words_at(program, variable, sizes[-1]))
    started_s = time.monotonic()
    with SizedRuns(job, program, variable, options.on_progress) as runs:
        report = LadderSearch(runs.run, device.gpu, budget_bytes, sizes).find(program, variable)
        tell_failure(options, report.failure, runs)
    wall_s = round(time.monotonic() - started_s, 3)
    return FoundLadder(replace(report, num_runs=runs.num_runs, wall_s=wall_s))


def _check_goes_with(options: FitOptions) -> None:
    """Raises SpecError for an option of the search for the fastest plan."""
    for flag, is_given in (
        ("--allow", options.allow != "same"),
        ("--objective", options.objective != "time"),
        ("--smallest-gpu", options.smallest_gpu),
        ("--gpus", options.gpus != 1),
        ("executor", options.executor is not None),
        ("--minutes", options.minutes is not None),
    ):
        if is_given:
            raise SpecError(f"{flag} does not go with --ladder; leave it out")
