"""The search for several GPUs: how to share the training among their ranks, and which techniques to
add.

A program for one GPU gets each way to share the training in turn (act/techniques/data_parallel.py,
zero_optimizer.py, shard.py), the one with the shortest step first. Under each, the search is that
for one GPU. It skips a way whose step is longer than that of the best plan so far, even with the
time that other techniques have saved. A program that shares its training itself is not changed.

Plans are played as rank 0 alone; the one that is found is played on every rank that is unlike it.

    report = fit_spread(run, job, Goal(gpu, budget_bytes), Semantics.SAME, limit)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import NamedTuple

from ullage.act.techniques.plan import Plan
from ullage.act.techniques.technique import Semantics
from ullage.explain.run import RunReport
from ullage.explain.verdict import ExitCode, Verdict
from ullage.facts.gpus.catalog import Gpu
from ullage.ground.errors import PlanError
from ullage.ground.units import format_bytes
from ullage.players.phantom.device import PhantomDevice
from ullage.players.phantom.launch import run_directory
from ullage.search.budget import Limit
from ullage.search.costs.clocked import timed
from ullage.search.costs.measure import Measurements, Runner, RunRequest
from ullage.search.findings import LATE, Candidate, FitReport, WorstRank, name_plan
from ullage.search.menu import Actions, layouts
from ullage.search.objective import Goal, Objective
from ullage.search.outcomes import say_slower
from ullage.search.runs.job import Job
from ullage.search.runs.search import search
from ullage.search.runs.survey import Survey
from ullage.search.search import Search

Decide = Callable[[Search], FitReport]
# How often a budget is lowered by what another rank needs more than rank 0.
_MAX_TRIES = 3


@dataclass(frozen=True, slots=True)
class _Tries:
    """The plans of falling budgets: the last, which plans some rank did not fit, and why."""

    budget_bytes: int
    report: FitReport | None = None
    is_answer: bool = False
    left_out: Mapping[str, str] = field(default_factory=dict)
    num_tries: int = 0


def fit_spread(run: Runner, job: Job, goal: Goal, allowed: Semantics, limit: Limit) -> FitReport:
    """The best plan for a job of several ranks that every rank was seen to fit.

    Args:
        run: makes runs of rank 0.
        job: rank 0, without a plan.
        goal: what is looked for.
        allowed: what techniques may change of what each rank computes.
        limit: of time.
    """
    spread = Spread(run, goal.gpu, allowed, goal.objective, limit)
    num_gpus = 1 if job.options.rank is None else job.options.rank.world_size

    def propose(tries: _Tries) -> int | None:
        is_over = tries.is_answer or tries.num_tries == _MAX_TRIES
        return None if is_over else tries.budget_bytes

    def attempt(budget_bytes: int) -> FitReport:
        report = spread.search(
            lambda search: (search.leanest if goal.is_for_memory else search.fastest)(budget_bytes),
            is_for_time=not goal.is_for_memory,
        )
        is_found = report.best is not None and report.best.seen is not None
        worst = _worst_rank(job, report.plan, goal.gpu) if is_found else None
        return replace(report, num_gpus=num_gpus, budget_bytes=goal.budget_bytes, worst_rank=worst)

    def judge(tries: _Tries, budget_bytes: int, report: FitReport) -> _Tries:
        best, worst = report.best, report.worst_rank
        is_small = worst is None or (worst.fits and worst.used_bytes <= goal.budget_bytes)
        if best is None or best.seen is None or worst is None or is_small:
            return replace(tries, report=report, is_answer=True)
        too_much = format_bytes(worst.used_bytes - goal.budget_bytes)
        return _Tries(
            budget_bytes - max(worst.used_bytes - best.seen.used_bytes, 1),
            report,
            left_out={**tries.left_out, best.name: f"rank {worst.rank} needs {too_much} too much"},
            num_tries=tries.num_tries + 1,
        )

    tries = search(_Tries(goal.budget_bytes), propose, attempt, judge)
    if tries.report is None:
        raise RuntimeError("no plan was looked for")
    if tries.is_answer:
        return replace(tries.report, plan=_for_gpus(tries.report.plan, num_gpus))
    return replace(
        tries.report,
        best=None,
        plan=None,
        worst_rank=None,
        left_out={**tries.report.left_out, **tries.left_out},
        exit_code=ExitCode.ANSWER_IS_NO,
    )


def _worst_rank(job: Job, plan: Plan | None, gpu: Gpu) -> WorstRank:
    """The rank that takes the most memory, of all that differ."""
    with run_directory() as mail:
        options = replace(job.options, plan=plan, mail=mail)
        device = PhantomDevice(gpu, is_unlimited=False)
        joined = Survey(replace(job, device=device, options=options)).report(None)
    devices = {device.rank or 0: device.peak_used_bytes for device in joined.devices}
    rank = max(devices, key=devices.__getitem__, default=0)
    fits = joined.verdict is Verdict.FITS
    return WorstRank(rank, devices.get(rank, 0), num_distinct=len(devices), fits=fits)


def _for_gpus(plan: Plan | None, num_gpus: int) -> Plan | None:
    if plan is None or plan.foreseen is None:
        return plan
    return replace(plan, foreseen=replace(plan.foreseen, num_gpus=num_gpus))


class _Way(NamedTuple):
    """A way to share the training: its actions, its plan, and the time of a step with it alone."""

    actions: Actions
    plan: Plan | None
    step_s: float


class Spread:
    """The search for one program on several equal GPUs; it makes each run once.

    Args:
        run: makes runs of one rank.
        gpu: the device of each.
        allowed: what techniques may change of what each rank computes.
        objective: what makes a plan the best of those that fit.
        limit: of time.

    Raises:
        PlanError: the program allows no way to share the training.
    """

    def __init__(
        self, run: Runner, gpu: Gpu, allowed: Semantics, objective: Objective, limit: Limit
    ) -> None:
        self._run = _remembering(run)
        self._gpu = gpu
        self._allowed = allowed
        self._objective = objective
        self._limit = limit
        self._left_out: dict[str, str] = {}
        self._searches: dict[str, Search] = {}
        self._ways = self._measure()

    def search(self, decide: Decide, *, is_for_time: bool = True) -> FitReport:
        """The best plan of all ways.

        Args:
            decide: chooses the plan of one search.
            is_for_time: whether it chooses the shortest step; else no way is skipped.
        """

        def propose(reports: tuple[FitReport, ...]) -> _Way | None:
            if len(reports) == len(self._ways) or (reports and self._limit.is_late(1.0)):
                return None
            # In the order of their steps: where one is longer, so are all that follow.
            way, best = self._ways[len(reports)], _best(reports, is_for_time=is_for_time)
            gains_s = [each.as_it_is.step_s - each.front[0][0] for each in reports if each.front]
            least_s = way.step_s - max([0.0, *gains_s])
            is_longer = best and best.best and least_s >= best.best.step_s
            return None if is_for_time and is_longer else way

        def attempt(way: _Way) -> FitReport:
            return _under(way.actions, decide(self._of(way, name_plan(way.actions, ()))))

        none: tuple[FitReport, ...] = ()
        reports = search(none, propose, attempt, lambda before, _way, report: (*before, report))
        is_late = self._limit.is_late(1.0)
        why = LATE if is_late else "its step is longer than that of the plan found"
        skipped = {name_plan(way.actions, ()): why for way in self._ways[len(reports) :]}
        chosen = _best(reports, is_for_time=is_for_time) or reports[0]
        joined = self._joined(chosen, reports, skipped)
        return replace(joined, ended=LATE) if skipped and is_late else joined

    def _of(self, way: _Way, name: str) -> Search:
        if name not in self._searches:
            self._searches[name] = Search(
                self._run, self._gpu, self._allowed, way.plan, objective=self._objective,
                is_late=self._limit.is_late,
            )  # fmt: skip
        return self._searches[name]

    def _measure(self) -> list[_Way]:
        """The ways that the program allows, the one with the shortest step first; an empty way
        where the program shares its training itself, or fails.
        """
        known = Measurements(self._run)
        base = known.measure_program()
        if base is None or any(len(group) > 1 for group in _groups(known.first)):
            return [_Way((), None, 0.0 if base is None else base.seconds.step)]
        plans: list[tuple[Actions, Plan]] = []
        for actions in layouts([block.path for block in known.blocks]):
            try:
                plans.append((actions, known.plan(actions)))
            except PlanError as error:
                self._left_out[name_plan(actions, ())] = str(error)
        reports = self._run([RunRequest(plan) for _, plan in plans])
        ways = []
        for (actions, plan), report in zip(plans, reports, strict=True):
            if report.verdict is not Verdict.FITS:
                self._left_out[name_plan(actions, ())] = report.reason
                continue
            time = timed(report)
            ways.append(_Way(actions, plan, 0.0 if time is None else time.step.s))
        if not ways:
            why = "; ".join(f"{name}: {reason}" for name, reason in self._left_out.items())
            raise PlanError(f"the training cannot be shared among ranks by a plan: {why}")
        return sorted(ways, key=lambda way: way.step_s)

    def _joined(
        self, chosen: FitReport, reports: Sequence[FitReport], skipped: Mapping[str, str]
    ) -> FitReport:
        """One report: all of the chosen way, and the best of each other."""
        others = [
            candidate
            for report in reports
            if report is not chosen
            for candidate in (report.as_it_is, report.best)
            if candidate is not None
        ]
        bounds = [report.bound_s for report in reports if report.best is not None]
        listed = {other.name: other for other in (*others, *chosen.candidates)}
        left_out = [(name, why) for report in reports for name, why in report.left_out.items()]
        return replace(
            chosen,
            candidates=tuple(
                _with_reason(candidate, chosen.best)
                for candidate in sorted(
                    listed.values(), key=lambda candidate: (candidate.step_s, candidate.name)
                )
            ),
            bound_s=min(bounds, default=0.0),
            left_out={**dict(left_out), **self._left_out, **skipped},
        )


def _remembering(run: Runner) -> Runner:
    known: dict[tuple[object, ...], RunReport] = {}

    def key(request: RunRequest) -> tuple[object, ...]:
        plan = None if request.plan is None else request.plan.text()
        return plan, request._replace(plan=None)

    def run_new(requests: Sequence[RunRequest]) -> list[RunReport]:
        new = {key(request): request for request in requests if key(request) not in known}
        known.update(zip(new, run(list(new.values())) if new else [], strict=True))
        return [known[key(request)] for request in requests]

    return run_new


def _groups(report: RunReport) -> list[tuple[int, ...]]:
    return [group for process in report.processes for group in process.record.groups]


def _best(reports: Sequence[FitReport], *, is_for_time: bool) -> FitReport | None:
    pairs = [(report.best, report) for report in reports if report.best is not None]
    key = attrgetter("step_s" if is_for_time else "used_bytes")
    return min(pairs, key=lambda pair: key(pair[0]), default=(None, None))[1]


def _under(actions: Actions, report: FitReport) -> FitReport:
    if not actions:
        return report

    def told(candidate: Candidate) -> Candidate:
        all_of_it = (*candidate.actions, *actions)
        return replace(candidate, actions=all_of_it, name=name_plan(all_of_it, report.blocks))

    return replace(
        report,
        as_it_is=told(report.as_it_is),
        best=None if report.best is None else told(report.best),
        candidates=tuple(map(told, report.candidates)),
    )


def _with_reason(candidate: Candidate, best: Candidate | None) -> Candidate:
    """A candidate of another way with the reason why it was not chosen."""
    if (
        best is None
        or candidate.why
        or candidate.name == best.name
        or candidate.seen is None
        or not candidate.seen.fits
    ):
        return candidate
    return replace(candidate, why=say_slower(candidate, best) or "takes more memory")
