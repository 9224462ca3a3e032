"""Finds the fastest way to make a program fit: what `ullage fit` and `ullage.fit` are.

    fit = ullage.fit(["train.py"], gpu="rtx-4090")
    print(fit.text())
    fit.plan.save("plan.json")

The program is run unchanged, and with each technique by itself, on a phantom that never runs out.
From what these runs took, memory stretch by stretch and time block by block, follows what any
mixture takes (search/costs/profile.py, search/costs/clocked.py); the best of them are run on the
device, the fastest first, and nothing is called fitting that was not seen to fit. The time of each
plan that ran is the clock's of its run (ullage.clock).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, cast

from ullage.act.techniques.made_for import MadeFor
from ullage.act.techniques.plan import Plan
from ullage.answers.verb_answer import PageAnswer
from ullage.facts.gpus.price import check_price
from ullage.ground.errors import SpecError
from ullage.ground.printable import hide_secrets
from ullage.ground.protocol.option import share, takes
from ullage.ground.protocol.plain import Mark
from ullage.players.phantom.device import choose_device
from ullage.players.phantom.rank import Rank, check_num_gpus, choose_ranks
from ullage.search.budget import LIMIT_S, Limit, find_budget, read_semantics
from ullage.search.findings import FitReport
from ullage.search.fit import Smallest, find_plan
from ullage.search.menu import variables
from ullage.search.objective import Goal, read_objective
from ullage.search.runner import make_search_job
from ullage.search.runs.trials import Trials
from ullage.verbs.fit.options import FitOptions
from ullage.verbs.run.options import RunOptions

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from ullage.answers.block_kinds import Blocks


@dataclass(frozen=True, slots=True)
class Fit(PageAnswer):
    """A finished search: its report, and the plan."""

    report: Annotated[FitReport, Mark.FLAT]

    @property
    def plan(self) -> Plan | None:
        """The fastest plan that was seen to fit; None: there is none, or none is needed."""
        return self.report.plan

    @property
    def plan_to_write(self) -> Plan | None:
        """The plan; where the program fits unchanged, one that changes nothing. None: nothing was
        seen to fit.
        """
        report = self.report
        if report.plan is not None or report.best is None:
            return report.plan
        made_for = report.made_for or MadeFor(report.torch, "", 0)
        return Plan((), replace(made_for, modules={}))

    @property
    def exit_code(self) -> int:
        """The exit code of the command line: 0 fits, as it is or under a plan; 1 nothing does; 130
        the search was interrupted.
        """
        return int(self.report.exit_code)

    @property
    def subject(self) -> str:
        """The title of the page: the program."""
        return " ".join(self.report.program)

    def blocks(self, *, full: bool = False) -> Blocks:
        """The blocks of its report."""
        from ullage.verbs.fit.text import fit_blocks

        return fit_blocks(self.report)


@takes(FitOptions)
def fit(options: FitOptions) -> Fit:
    """Finds the fastest plan under which a program fits a GPU. One of gpu, memory, budget and
    smallest_gpu has to be given; where smallest_gpu alone is, the plan is for that GPU.

    Raises:
        SpecError: an option or the program is not possible.
        EnvironmentProblem: no torch for CUDA there, or one that this ullage does not know; or no
            run ended within the time limit.
    """
    gpus, is_smallest = options.gpus, options.smallest_gpu
    device = choose_device(options.gpu, memory=options.memory, capability=options.capability)
    is_open = is_smallest and options.budget is None and device.is_unlimited
    smallest = Smallest.INSTEAD if is_open else Smallest.TOO if is_smallest else Smallest.NO
    budget_bytes = device.gpu.total_bytes if is_open else find_budget(device, options.budget)
    if is_smallest and gpus > 1:
        raise SpecError("the smallest GPU is looked for by one rank alone; leave --gpus out")
    job = make_search_job(share(RunOptions, options, plan=None), device)
    job = replace(job, options=replace(job.options, rank=_first_rank(gpus)))
    started_s = time.monotonic()
    objective = read_objective(options.objective, check_price(options.price))
    goal = Goal(device.gpu, budget_bytes, objective)
    limit = Limit(started_s + (LIMIT_S if options.minutes is None else 60 * options.minutes))
    semantics = read_semantics(options.allow)
    techniques, executor = [*variables(semantics)], _executor(options)
    with Trials(job, options.on_progress, techniques, executor, limit.end_s) as trials:
        report = find_plan(trials, job, goal, semantics, smallest, limit=limit)
        if report.failure and options.on_failure is not None:
            for text in [*trials.outputs.values()][:1]:
                options.on_failure(text)
    return Fit(
        replace(
            report,
            program=hide_secrets(job.program.argv),
            num_runs=trials.num_runs,
            price=options.price,
            objective=goal.objective,
            wall_s=round(time.monotonic() - started_s, 3),
        )
    )


def _executor(options: FitOptions) -> Executor | None:
    if isinstance(options.executor, str):
        raise SpecError("executor: found a name; expected the executor itself")
    return cast("Executor | None", options.executor)


def _first_rank(gpus: int) -> Rank | None:
    check_num_gpus(gpus)
    return None if gpus == 1 else choose_ranks((0,), gpus, gpus)[0]
