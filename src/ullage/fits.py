"""Finds the fastest way to make a program fit: what `ullage fit` and `ullage.fit` are.

    fit = ullage.fit(["train.py"], gpu="rtx-4090")
    print(fit.text())
    fit.plan.save("plan.json")

The program is run as it is, and with each technique by itself, on a phantom that never runs out.
From what these runs took, memory stretch by stretch and work block by block, follows what any
mixture takes (plan/profile.py, plan/cost.py); the best of them are run on the device, the fastest
first, and nothing is called fitting that was not seen to fit.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Unpack

from ullage.errors import SpecError
from ullage.gpus.catalog import find_gpu, load_catalog
from ullage.jobs import Job, ProgramOptions, make_job, make_options
from ullage.launched import find_launched, fit_launched
from ullage.phantom.device import PhantomDevice, choose_device, parse_budget
from ullage.phantom.rank import Rank, choose_ranks
from ullage.plan.cost import with_rates
from ullage.plan.findings import FitReport
from ullage.spreads import Goal, fit_spread
from ullage.techniques.plan import MadeFor, Plan
from ullage.techniques.technique import Semantics
from ullage.trials import Trials

if TYPE_CHECKING:
    from ullage.plan.measure import Runner, Wanted
    from ullage.plan.search import Search
    from ullage.ray_trials import RayTrials

# The steps that a run is cut off after: the first has no optimizer states yet, the third is as all
# that follow.
STEPS = 3
# Seconds after which a search tries no more plans, unless it is told otherwise.
LIMIT_S = 900.0


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
        from ullage.report.fit import fit_document

        return fit_document(self.report)

    @property
    def html(self) -> str:
        """One self-contained page: the plans, and time against memory."""
        from ullage.report.fit_page import render_fit_page

        return render_fit_page(self.report)

    def text(self, width: int = 80) -> str:
        """The report for people, without colour."""
        from ullage.report.fit import render_fit

        return render_fit(self.report, width)


def fit(
    program: Sequence[str],
    *,
    gpu: str | None = None,
    memory: str | int | None = None,
    capability: str | None = None,
    budget: str | int | None = None,
    allow: str = Semantics.SAME.value,
    objective: str = "time",
    smallest_gpu: bool = False,
    gpus: int = 1,
    ray: str | None = None,
    rates: str | os.PathLike[str] | None = None,
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
        objective: "time": the fastest plan that fits; "memory": that which takes the least memory.
        smallest_gpu: look for the smallest GPU of the catalogue too, some runs more; where no
            device is named, the plan is for that one.
        gpus: GPUs of one machine that share the training, a rank on each; what is said of the
            device and the budget is of each.
        ray: the address of a Ray cluster that makes the runs (ray_trials.py); None: this machine.
        rates: what such a GPU was measured to reach, a file of `ullage calibrate`; "catalogue": as
            makers state it; None: what is kept of this GPU, if it was measured here.
        limit_s: seconds after which no more plans are tried, and the best so far is given.
        on_progress: called with a line as runs end.
        on_failure: called with the last output of the program where it failed as it is.
        options: alloc_conf, steps (default 3), real_init, dummy_weights, values and assume of
            `ullage.run`.

    Raises:
        SpecError: an option or the program is not possible.
        EnvironmentProblem: no torch for CUDA there, or one that this ullage does not know.
    """
    device = choose_device(gpu, memory=memory, capability=capability)
    device = replace(device, gpu=with_rates(device.gpu, rates))
    is_open = smallest_gpu and budget is None and device.is_unlimited
    smallest = _Smallest.INSTEAD if is_open else _Smallest.TOO if smallest_gpu else _Smallest.NO
    budget_bytes = device.gpu.total_bytes if is_open else find_budget(device, budget)
    if smallest_gpu and gpus > 1:
        raise SpecError("the smallest GPU is looked for by one rank alone; leave --gpus out")
    job = make_search_job(program, device, python, **options)
    job = replace(job, options=replace(job.options, rank=_first_rank(gpus)))
    started_s = time.monotonic()
    goal = Goal(device.gpu, budget_bytes, is_for_memory=_is_for_memory(objective))
    limit = Limit(started_s + limit_s)
    with make_trials(job, ray, on_progress, read_semantics(allow)) as trials:
        report = _fit(trials, job, goal, read_semantics(allow), smallest, limit=limit)
        if report.failure and on_failure is not None:
            for text in [*trials.outputs.values()][:1]:
                on_failure(text)
    return Fit(
        replace(
            report,
            program=job.program.argv,
            num_runs=trials.num_runs,
            wall_s=time.monotonic() - started_s,
        )
    )


class _Smallest(Enum):
    """Whether the smallest GPU is looked for, and the plan is for that one."""

    NO = 0
    TOO = 1
    INSTEAD = 2


class Limit:
    """When a search is to end, and which search that is.

    Attributes:
        search: the one that goes on; None: none has begun.
        budget_bytes: that it looks for.
    """

    def __init__(self, end_s: float) -> None:
        self._started_s, self._end_s = time.monotonic(), end_s
        self.search: Search | None = None
        self.budget_bytes = 0

    def is_late(self, share: float) -> bool:
        """Whether that share of the time is over."""
        passed = time.monotonic() - self._started_s
        return passed >= share * (self._end_s - self._started_s)

    def follow(self, search: Search, budget_bytes: int) -> Search:
        """This search goes on from here."""
        self.search, self.budget_bytes = search, budget_bytes
        return search


def _fit(
    trials: Trials | RayTrials,
    job: Job,
    goal: Goal,
    allowed: Semantics,
    wanted: _Smallest,
    *,
    limit: Limit,
) -> FitReport:
    """The best plan; of a search that is interrupted, the best so far."""
    try:
        if job.options.rank is not None:
            return _fit_several(trials, job, goal, allowed)
        found = _fit_as_it_is(trials, job, goal, wanted)
        return found or _fit_one(trials, job, goal, allowed, wanted, limit=limit)
    except KeyboardInterrupt:
        known = None if limit.search is None else limit.search.so_far(limit.budget_bytes)
        if known is None:
            raise
        return known


def _fit_as_it_is(
    trials: Trials | RayTrials, job: Job, goal: Goal, smallest: _Smallest
) -> FitReport | None:
    """The report of a program that fits as it is, by one run; None: it does not, or that is not
    what is asked.
    """
    from ullage.plan.as_it_is import fits_as_it_is

    if goal.is_for_memory or smallest is not _Smallest.NO:
        return None
    return fits_as_it_is(make_runner(trials, job), goal.gpu, goal.budget_bytes)


def _fit_one(
    trials: Trials | RayTrials,
    job: Job,
    goal: Goal,
    allowed: Semantics,
    wanted: _Smallest,
    *,
    limit: Limit,
) -> FitReport:
    """The best plan for one GPU."""
    from ullage.plan.search import Search

    if allowed is Semantics.TRAINING and wanted is _Smallest.NO and not goal.is_for_memory:
        # One that does less in a step is faster: it is for where nothing else fits.
        milder = Search(
            make_runner(trials, job), goal.gpu, Semantics.ROUNDING, is_late=limit.is_late
        )
        limit.follow(milder, goal.budget_bytes)
        report = milder.fastest(goal.budget_bytes)
        if report.best is not None or report.failure:
            return report
    search = Search(make_runner(trials, job), goal.gpu, allowed, is_late=limit.is_late)
    limit.follow(search, goal.budget_bytes)
    smallest = None if wanted is _Smallest.NO else search.smallest_gpu(load_catalog())
    if wanted is _Smallest.INSTEAD and smallest is not None:
        found = find_gpu(smallest.gpu)
        there = replace(job, device=PhantomDevice(found, is_unlimited=True))
        search = Search(make_runner(trials, there), found, allowed, is_late=limit.is_late)
        goal = goal._replace(gpu=found, budget_bytes=found.total_bytes)
        limit.follow(search, goal.budget_bytes)
    ask = search.leanest if goal.is_for_memory else search.fastest
    return replace(ask(goal.budget_bytes), smallest=smallest)


def _fit_several(trials: Trials | RayTrials, job: Job, goal: Goal, allowed: Semantics) -> FitReport:
    """The best plan for several GPUs; where the program has a launcher's configuration, the best of
    those.
    """
    launched = find_launched(job)
    if launched is None:
        return fit_spread(make_runner(trials, job), job, goal, allowed)
    if not isinstance(trials, Trials):
        raise SpecError("configurations of a launcher are tried on this machine; leave --ray out")
    return fit_launched(trials, job, launched, goal.budget_bytes, is_for_memory=goal.is_for_memory)


def _first_rank(gpus: int) -> Rank | None:
    """Rank 0 of a job of one machine; None: it is no job."""
    if gpus < 1:
        raise SpecError(f"gpus={gpus} is not a number of GPUs; expected 1 or more")
    return None if gpus == 1 else choose_ranks((0,), gpus, gpus)[0]


def make_search_job(
    program: Sequence[str],
    device: PhantomDevice,
    python: str | os.PathLike[str] | None,
    **options: Unpack[ProgramOptions],
) -> Job:
    """The runs that a search makes plans from: cut off after `STEPS`, where memory is without end.

    Raises:
        SpecError: an option or the program is not possible.
        EnvironmentProblem: no torch for CUDA there, or one that this ullage does not know.
    """
    if options.get("plan") is not None:
        raise SpecError("a search makes a plan; leave the other plan out")
    told = {"steps": STEPS, **{key: value for key, value in options.items() if value is not None}}
    return make_job(
        program,
        device=replace(device, is_unlimited=True),
        python=python,
        options=make_options(**told),  # type: ignore[arg-type]
    )


def make_trials(
    job: Job, ray: str | None, on_progress: Callable[[str], None] | None, semantics: Semantics
) -> Trials | RayTrials:
    """What makes the runs of a search, of techniques that may change so much: this machine, or a
    Ray cluster.
    """
    if ray is None:
        from ullage.plan.menu import variables

        return Trials(job, on_progress, list(variables(semantics)))
    from ullage.ray_trials import RayTrials

    return RayTrials(job, ray, on_progress)


def make_runner(trials: Trials | RayTrials, job: Job) -> Runner:
    """Runs plans, each on its GPU or where memory is without end, with the work or without."""

    def device_of(one: Wanted) -> PhantomDevice:
        return job.device if one.gpu is None else PhantomDevice(one.gpu, is_unlimited=False)

    def run(wanted: Sequence[Wanted]) -> list[Any]:
        jobs = [
            replace(
                job,
                device=device_of(one),
                options=replace(
                    job.options,
                    plan=one.plan,
                    describes=one.describes,
                    has_work=one.has_work,
                    replays=one.replays,
                ),
            )
            for one in wanted
        ]
        is_fresh = any(one.is_fresh for one in wanted)
        return [result.report for result in trials.run(jobs, is_fresh=is_fresh)]

    return run


def find_budget(device: PhantomDevice, budget: str | int | None) -> int:
    """What may be used of the device.

    Raises:
        SpecError: nothing says how much there is, or the budget is more than the device has.
    """
    if budget is None:
        if device.is_unlimited:
            raise SpecError("fit into what? give --gpu, --memory, --budget or --smallest-gpu")
        return device.gpu.total_bytes
    return parse_budget(device.gpu, budget)


def read_semantics(allow: str) -> Semantics:
    """What techniques may change; SpecError where the word is not known."""
    if allow == "none":
        raise SpecError(
            "a search without techniques finds no plan: `ullage run` says whether it fits as it "
            "is; --allow none goes with --max-batch and --largest"
        )
    try:
        return Semantics(allow)
    except ValueError:
        raise SpecError(f"allow={allow!r} is not known; expected: {', '.join(Semantics)}") from None


def _is_for_memory(objective: str) -> bool:
    if objective not in {"time", "memory"}:
        raise SpecError(f"objective={objective!r} is not known; expected: time, memory")
    return objective == "memory"
