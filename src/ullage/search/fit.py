"""The whole search: on one GPU, on several, for the smallest GPU, and what of it is left where it
is interrupted.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from functools import partial

from ullage.act.techniques.technique import Semantics
from ullage.explain.verdict import ExitCode
from ullage.facts.gpus.catalog import Gpu, find_gpu, load_catalog
from ullage.ground.errors import SpecError
from ullage.players.phantom.device import PhantomDevice
from ullage.search.budget import Limit
from ullage.search.costs.clocked import timed
from ullage.search.costs.measure import Runner, RunRequest
from ullage.search.findings import AS_IT_IS, INTERRUPTED, LATE, Candidate, FitReport, failed
from ullage.search.launchers.launched import find_launched, fit_launched
from ullage.search.objective import Goal
from ullage.search.outcomes import judge
from ullage.search.runner import make_runner
from ullage.search.runs.job import Job
from ullage.search.runs.search import LimitReached
from ullage.search.runs.trials import Trials
from ullage.search.spread import fit_spread


class Smallest(Enum):
    """The search for the smallest GPU, and for a plan on that one."""

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
    """The best plan; the best so far where the search is interrupted, or at its time limit."""
    try:
        if job.options.rank is not None:
            return _fit_several(trials, job, goal, allowed, limit)
        is_enough = not goal.is_for_memory and smallest is Smallest.NO
        run = make_runner(trials, job)
        report = fit_unchanged(run, goal.gpu, goal.budget_bytes) if is_enough else None
        return report or _fit_one(trials, job, goal, allowed, smallest, limit=limit)
    except (KeyboardInterrupt, LimitReached) as error:
        ended = LATE if isinstance(error, LimitReached) else INTERRUPTED
        known = None if limit.search is None else limit.search.so_far(limit.budget_bytes, ended)
        if known is None:
            raise
        return known


def fit_unchanged(run: Runner, gpu: Gpu, budget_bytes: int) -> FitReport | None:
    """The report of a program that fits unchanged, by one run; None: it does not, or only with
    retries of the allocator, which cost time.
    """
    (report,) = run([RunRequest(None, gpu, describes=True, is_fresh=True)])
    observation = judge(report, budget_bytes)
    if not observation.fits or observation.num_retries or not report.devices:
        return None
    outcome = report.program.plan
    time = timed(report)
    candidate = Candidate(
        AS_IT_IS,
        (),
        0.0 if time is None else time.step.s,
        observation.allocated_bytes,
        observation.used_bytes,
        observation,
        time=time,
    )
    return replace(
        failed(report, gpu, budget_bytes, ""),
        as_it_is=candidate,
        best=candidate,
        candidates=(candidate,),
        failure="",
        made_for=None if outcome is None else outcome.found,
        exit_code=ExitCode.FINE,
    )


def _fit_one(
    trials: Trials,
    job: Job,
    goal: Goal,
    allowed: Semantics,
    mode: Smallest,
    *,
    limit: Limit,
) -> FitReport:
    from ullage.search.search import Search

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


def _fit_several(
    trials: Trials, job: Job, goal: Goal, allowed: Semantics, limit: Limit
) -> FitReport:
    """The best plan for several GPUs; where the program has a launcher's configuration, the best of
    those.
    """
    launched = find_launched(job)
    if launched is None:
        return fit_spread(make_runner(trials, job), job, goal, allowed, limit)
    if not trials.is_here:
        raise SpecError("workers do not have a launcher's configurations; leave the executor out")
    return fit_launched(
        trials, job, launched, goal.budget_bytes, limit, is_for_memory=goal.is_for_memory
    )
