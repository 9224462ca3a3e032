"""The whole search: on one GPU, on several, for the smallest GPU, and what of it is left where it
is interrupted.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from functools import partial

from ullage.errors import SpecError
from ullage.gpus.catalog import find_gpu, load_catalog
from ullage.phantom.device import PhantomDevice
from ullage.plan.budget import Limit
from ullage.plan.findings import FitReport
from ullage.plan.launchers.launched import find_launched, fit_launched
from ullage.plan.objective import Goal
from ullage.plan.over_ranks import fit_spread
from ullage.plan.runner import make_runner
from ullage.runs.job import Job
from ullage.runs.trials import Trials
from ullage.techniques.technique import Semantics


class Smallest(Enum):
    """Whether the smallest GPU is looked for, and the plan is for that one."""

    NO = 0
    TOO = 1
    INSTEAD = 2


def find_plan(
    trials: Trials,
    job: Job,
    goal: Goal,
    allowed: Semantics,
    smallest: Smallest,
    *,
    limit: Limit,
) -> FitReport:
    """The best plan; of a search that is interrupted, the best so far."""
    try:
        if job.options.rank is not None:
            return _fit_several(trials, job, goal, allowed)
        report = _fit_as_it_is(trials, job, goal, smallest)
        return report or _fit_one(trials, job, goal, allowed, smallest, limit=limit)
    except KeyboardInterrupt:
        known = None if limit.search is None else limit.search.so_far(limit.budget_bytes)
        if known is None:
            raise
        return known


def _fit_as_it_is(trials: Trials, job: Job, goal: Goal, smallest: Smallest) -> FitReport | None:
    """The report of a program that fits unchanged, by one run; None: it does not, or that is not
    what is asked.
    """
    from ullage.plan.unchanged import fit_unchanged

    if goal.is_for_memory or smallest is not Smallest.NO:
        return None
    return fit_unchanged(make_runner(trials, job), goal.gpu, goal.budget_bytes)


def _fit_one(
    trials: Trials,
    job: Job,
    goal: Goal,
    allowed: Semantics,
    mode: Smallest,
    *,
    limit: Limit,
) -> FitReport:
    from ullage.plan.search import Search

    make = partial(Search, objective=goal.objective, is_late=limit.is_late)
    if allowed is Semantics.TRAINING and mode is Smallest.NO and not goal.is_for_memory:
        # One that does less in a step is faster: it is for where nothing else fits.
        milder = make(make_runner(trials, job), goal.gpu, Semantics.ROUNDING)
        limit.follow(milder, goal.budget_bytes)
        report = milder.fastest(goal.budget_bytes)
        if report.best is not None or report.failure:
            return report
    search = make(make_runner(trials, job), goal.gpu, allowed)
    limit.follow(search, goal.budget_bytes)
    smallest = None if mode is Smallest.NO else search.smallest_gpu(load_catalog())
    if mode is Smallest.INSTEAD and smallest is not None:
        gpu = find_gpu(smallest.gpu)
        there = replace(job, device=PhantomDevice(gpu, is_unlimited=True))
        search = make(make_runner(trials, there), gpu, allowed)
        goal = goal._replace(gpu=gpu, budget_bytes=gpu.total_bytes)
        limit.follow(search, goal.budget_bytes)
    ask = search.leanest if goal.is_for_memory else search.fastest
    return replace(ask(goal.budget_bytes), smallest=smallest)


def _fit_several(trials: Trials, job: Job, goal: Goal, allowed: Semantics) -> FitReport:
    """The best plan for several GPUs; where the program has a launcher's configuration, the best of
    those.
    """
    launched = find_launched(job)
    if launched is None:
        return fit_spread(make_runner(trials, job), job, goal, allowed)
    if not trials.is_here:
        raise SpecError("workers do not have a launcher's configurations; leave the executor out")
    return fit_launched(trials, job, launched, goal.budget_bytes, is_for_memory=goal.is_for_memory)
