"""Finds the fastest way to make a program fit: what `ullage fit` and `ullage.fit` are.

    fit = ullage.fit(["train.py"], gpu="rtx-4090")
    print(fit.text())
    fit.plan.save("plan.json")

The program is run as it is, and with each technique by itself, on a phantom that never runs out.
From what these runs took, memory stretch by stretch and time block by block, follows what any
mixture takes (plan/costs/profile.py, plan/costs/clocked.py); the best of them are run on the
device, the fastest first, and nothing is called fitting that was not seen to fit. The time of each
plan that ran is the clock's of its run (ullage.clock).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Unpack

from ullage.errors import SpecError
from ullage.gpus.price import check_price
from ullage.phantom.device import choose_device
from ullage.phantom.rank import Rank, choose_ranks
from ullage.plan.budget import LIMIT_S, Limit, find_budget, read_semantics
from ullage.plan.findings import FitReport
from ullage.plan.fit import Smallest, find_plan
from ullage.plan.menu import variables
from ullage.plan.objective import Goal, Objective, read_objective
from ullage.plan.runner import make_search_job
from ullage.printable import hide_secrets
from ullage.runs.job import ProgramOptions
from ullage.runs.trials import Trials
from ullage.techniques.made_for import MadeFor
from ullage.techniques.plan import Plan
from ullage.techniques.technique import Semantics

if TYPE_CHECKING:
    from concurrent.futures import Executor


@dataclass(frozen=True, slots=True)
class Fit:
    """A finished search: its report, and the plan."""

    report: FitReport

    @property
    def plan(self) -> Plan | None:
        """The fastest plan that was seen to fit; None: there is none, or none is needed."""
        return self.report.plan

    @property
    def plan_to_write(self) -> Plan | None:
        """The plan; where the program fits as it is, one that changes nothing. None: nothing was
        seen to fit.
        """
        report = self.report
        if report.plan is not None or report.best is None:
            return report.plan
        made_for = report.made_for or MadeFor(report.torch, "", 0)
        return Plan((), replace(made_for, modules={}))

    @property
    def exit_code(self) -> int:
        """What the command line exits with: 0 fits, as it is or under a plan; 1 nothing does; 130
        the search was interrupted.
        """
        return int(self.report.exit_code)

    @property
    def document(self) -> dict[str, Any]:
        """The document, schema "ullage.fit/1"."""
        from ullage.report.document.fit import fit_document

        return fit_document(self.report)

    @property
    def html(self) -> str:
        """One self-contained page: the plans, and time against memory."""
        from ullage.answers.html import render_page
        from ullage.report.text.fit import fit_blocks

        return render_page(" ".join(self.report.program), fit_blocks(self.report), self.document)

    def text(self, width: int = 80) -> str:
        """The report for people, without colour."""
        from ullage.answers.text import render
        from ullage.report.text.fit import fit_blocks

        return render(fit_blocks(self.report), width)


def fit(
    program: Sequence[str],
    *,
    gpu: str | None = None,
    memory: str | int | None = None,
    capability: str | None = None,
    budget: str | int | None = None,
    allow: str = Semantics.SAME.value,
    objective: str = Objective.TIME.value,
    price: float | None = None,
    smallest_gpu: bool = False,
    gpus: int = 1,
    executor: Executor | None = None,
    limit_s: float = LIMIT_S,
    python: str | os.PathLike[str] | None = None,
    on_progress: Callable[[str], None] | None = None,
    on_failure: Callable[[str], None] | None = None,
    **options: Unpack[ProgramOptions],
) -> Fit:
    """Finds the fastest plan under which a program fits a GPU.

    Args:
        program: its words, as for `ullage.run`.
        gpu, memory, capability, python: as for `ullage.run`; one of gpu, memory, budget and
            smallest_gpu has to be given.
        budget: what may be used of the device, such as "20GiB"; None: all of it.
        allow: "same": techniques that compute the same; "rounding": other precisions too;
            "training": such that change the training too.
        objective: "time": the fastest plan that fits; "cost": the cheapest, which is the fastest
            but where plans differ in the tokens of a step; "memory": that which takes the least
            memory.
        price: dollars for a GPU-hour, for what the steps and tokens of each plan cost.
        smallest_gpu: look for the smallest GPU of the catalogue too, some runs more; where no
            device is named, the plan is for that one.
        gpus: GPUs of one machine that share the training, a rank on each; what is said of the
            device and the budget is of each.
        executor: whose workers make the runs (docs/guide/fit.md); None: this process makes them.
        limit_s: seconds after which no more plans are tried, and the best so far is given.
        on_progress: called with a line as runs end.
        on_failure: called with the last output of the program where it failed as it is.
        options: alloc_conf, steps (default 3), real_init, dummy_weights, values, assume and
            measured of `ullage.run`.

    Raises:
        SpecError: an option or the program is not possible.
        EnvironmentProblem: no torch for CUDA there, or one that this ullage does not know.
    """
    device = choose_device(gpu, memory=memory, capability=capability)
    is_open = smallest_gpu and budget is None and device.is_unlimited
    smallest = Smallest.INSTEAD if is_open else Smallest.TOO if smallest_gpu else Smallest.NO
    budget_bytes = device.gpu.total_bytes if is_open else find_budget(device, budget)
    if smallest_gpu and gpus > 1:
        raise SpecError("the smallest GPU is looked for by one rank alone; leave --gpus out")
    job = make_search_job(program, device, python, **options)
    job = replace(job, options=replace(job.options, rank=_first_rank(gpus)))
    started_s = time.monotonic()
    goal = Goal(device.gpu, budget_bytes, read_objective(objective, check_price(price)))
    limit = Limit(started_s + limit_s)
    semantics = read_semantics(allow)
    with Trials(job, on_progress, [*variables(semantics)], executor) as trials:
        report = find_plan(trials, job, goal, semantics, smallest, limit=limit)
        if report.failure and on_failure is not None:
            for text in [*trials.outputs.values()][:1]:
                on_failure(text)
    return Fit(
        replace(
            report,
            program=hide_secrets(job.program.argv),
            num_runs=trials.num_runs,
            price=price,
            objective=goal.objective,
            wall_s=time.monotonic() - started_s,
        )
    )


def _first_rank(gpus: int) -> Rank | None:
    if gpus < 1:
        raise SpecError(f"gpus={gpus} is not a number of GPUs; expected 1 or more")
    return None if gpus == 1 else choose_ranks((0,), gpus, gpus)[0]
