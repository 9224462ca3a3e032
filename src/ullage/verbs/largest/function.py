"""Finds the largest batch, or other size, with which a program fits: what `ullage largest` and
`ullage.largest` are.

    found = ullage.largest(["train.py", "--batch-size", "{batch}"], gpu="l4")
    found.size, found.plan
    print(found.text())

Every run is one on the phantom: nothing runs out of memory on a GPU to find this out.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from ullage.act.techniques.plan import Plan
from ullage.answers.verb_answer import VerbAnswer
from ullage.ground.errors import SpecError
from ullage.ground.protocol.option import share, takes
from ullage.ground.protocol.plain import Mark
from ullage.players.phantom.device import PhantomDevice, choose_device
from ullage.search.budget import find_budget, read_semantics
from ullage.search.runner import make_search_job
from ullage.search.runs.job import Job
from ullage.search.runs.variables import check_variable, only_variable
from ullage.search.sizes.largest import LargestReport
from ullage.search.sizes.sized_runs import SizedRuns, without_end, words_at
from ullage.verbs.fit.options import FitOptions
from ullage.verbs.largest.options import LargestOptions
from ullage.verbs.run.options import RunOptions

if TYPE_CHECKING:
    from ullage.answers.block_kinds import Blocks


@dataclass(frozen=True, slots=True)
class Largest(VerbAnswer):
    """A finished search for the largest size."""

    report: Annotated[LargestReport, Mark.FLAT]

    @property
    def size(self) -> int | None:
        """The largest that was seen to fit, as it is or under the plan; None: none was."""
        return None if self.report.best is None else self.report.best.size

    @property
    def plan(self) -> Plan | None:
        """The plan that the size needs; None: it needs none, or nothing fits."""
        return None if self.report.best is None else self.report.best.plan

    @property
    def exit_code(self) -> int:
        """The exit code of the command line: 0 some size fits, 1 none does."""
        return int(self.report.exit_code)

    def blocks(self, *, full: bool = False) -> Blocks:
        """The blocks of its report."""
        from ullage.verbs.largest.text import largest_blocks

        return largest_blocks(self.report)


@takes(LargestOptions)
def largest(options: LargestOptions) -> Largest:
    """Finds the largest size with which a program fits a GPU, as it is and under plans; with
    `allow` none the program is run as it is alone, in a handful of runs.

    Raises:
        SpecError: an option, the variable or the program is not possible.
        EnvironmentProblem: no torch for CUDA there, or one that this ullage does not know.
    """
    program, multiple_of = options.program, options.multiple_of
    variable = only_variable(program) if options.vary is None else options.vary
    check_variable(variable, program)
    if multiple_of < 1:
        raise SpecError(f"multiple_of={multiple_of} is not possible; give 1 or more")
    allowed = None if options.allow == "none" else read_semantics(options.allow)
    device, budget_bytes, job = make_sized_job(options, words_at(program, variable, multiple_of))
    from ullage.search.sizes.largest import LargestSearch

    started_s = time.monotonic()
    with SizedRuns(job, program, variable, options.on_progress) as runs:
        search = LargestSearch(runs.run, device.gpu, budget_bytes, multiple_of)
        report = search.find(program, variable, allowed)
        tell_failure(options, report.failure, runs)
    wall_s = round(time.monotonic() - started_s, 3)
    return Largest(replace(report, num_runs=runs.num_runs, wall_s=wall_s))


def make_sized_job(
    options: FitOptions | LargestOptions, words: Sequence[str]
) -> tuple[PhantomDevice, int, Job]:
    """The device, its budget, and the job with these words, which no memory ends."""
    device = choose_device(options.gpu, memory=options.memory, capability=options.capability)
    run = share(RunOptions, options, program=words)
    return device, find_budget(device, options.budget), make_search_job(run, without_end(device))


def tell_failure(options: FitOptions | LargestOptions, failure: object, runs: SizedRuns) -> None:
    """Has the listener of failures told what a program that failed has written."""
    if failure and options.on_failure is not None:
        for text in runs.outputs[:1]:
            options.on_failure(text)
