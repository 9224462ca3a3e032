"""Finds plans for several GPUs: candidates are played as rank 0 alone, and what was found is played
on every rank that is unlike it.

    report = fit_spread(run, job, Goal(gpu, budget_bytes), Semantics.SAME)
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from ullage.explain.verdict import ExitCode, Verdict
from ullage.gpus.catalog import Gpu
from ullage.phantom.device import PhantomDevice
from ullage.phantom.launch import run_directory
from ullage.plan.findings import FitReport, WorstRank
from ullage.plan.objective import Goal
from ullage.plan.spread import Spread
from ullage.runs.job import Job
from ullage.runs.survey import Survey
from ullage.techniques.plan import Plan
from ullage.techniques.technique import Semantics
from ullage.units import format_bytes

if TYPE_CHECKING:
    from ullage.plan.costs.measure import Runner
    from ullage.plan.search import Search

# How often a budget is lowered by what another rank needs more than rank 0.
_MAX_TRIES = 3


def fit_spread(run: Runner, job: Job, goal: Goal, allowed: Semantics) -> FitReport:
    """The best plan for a job of several ranks that every rank was seen to fit.

    Args:
        run: makes runs of rank 0.
        job: rank 0, without a plan.
        goal: what is looked for.
        allowed: what techniques may change of what each rank computes.
    """
    spread = Spread(run, goal.gpu, allowed, goal.objective)
    num_gpus = 1 if job.options.rank is None else job.options.rank.world_size
    budget_bytes = goal.budget_bytes

    def decide(search: Search) -> FitReport:
        ask = search.leanest if goal.is_for_memory else search.fastest
        return ask(budget_bytes)

    left_out: dict[str, str] = {}
    for _ in range(_MAX_TRIES):
        match = spread.search(decide, is_for_time=not goal.is_for_memory)
        report = replace(match, num_gpus=num_gpus, budget_bytes=goal.budget_bytes)
        if report.best is None or report.best.seen is None:
            return report
        worst = _worst_rank(job, report.plan, goal.gpu)
        if worst.fits and worst.used_bytes <= goal.budget_bytes:
            return replace(report, worst_rank=worst, plan=_for_gpus(report.plan, num_gpus))
        too_much = format_bytes(worst.used_bytes - goal.budget_bytes)
        left_out[report.best.name] = f"rank {worst.rank} needs {too_much} too much"
        budget_bytes -= max(worst.used_bytes - report.best.seen.used_bytes, 1)
    return replace(
        report,
        best=None,
        plan=None,
        left_out={**report.left_out, **left_out},
        exit_code=ExitCode.ANSWER_IS_NO,
    )


def _worst_rank(job: Job, plan: Plan | None, gpu: Gpu) -> WorstRank:
    """The rank that takes the most memory, of all that differ."""
    started_s = time.monotonic()
    with run_directory() as mail:
        options = replace(job.options, plan=plan, mail=mail)
        device = PhantomDevice(gpu, is_unlimited=False)
        survey = Survey(replace(job, device=device, options=options))
        survey.play((0,))
        joined = survey.joined(survey.find_distinct(), time.monotonic() - started_s)
    devices = {device.rank or 0: device.peak_used_bytes for device in joined.devices}
    rank = max(devices, key=devices.__getitem__, default=0)
    fits = joined.verdict is Verdict.FITS
    return WorstRank(rank, devices.get(rank, 0), num_distinct=len(devices), fits=fits)


def _for_gpus(plan: Plan | None, num_gpus: int) -> Plan | None:
    if plan is None or plan.foreseen is None:
        return plan
    return replace(plan, foreseen=replace(plan.foreseen, num_gpus=num_gpus))
