"""The search for several GPUs: how to share the training among their ranks, and which techniques to
add.

A program for one GPU gets each way to share the training in turn (techniques/data_parallel.py,
zero_optimizer.py, shard.py), the one with the shortest step first. Under each, the search is that
for one GPU. It skips a way whose step is longer than that of the best plan so far, even with the
time that other techniques have saved. A program that shares its training itself is not changed.

    spread = Spread(run, gpu, Semantics.SAME)
    spread.search(lambda search: search.fastest(budget_bytes)).best
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from ullage.errors import PlanError
from ullage.explain.run import RunReport
from ullage.explain.verdict import Verdict
from ullage.gpus.catalog import Gpu
from ullage.plan.costs.clocked import timed
from ullage.plan.costs.measure import Measurements, Runner, RunRequest
from ullage.plan.findings import Candidate, FitReport, name_plan
from ullage.plan.menu import Actions, layouts
from ullage.plan.objective import Objective
from ullage.plan.outcomes import say_slower
from ullage.plan.search import Search
from ullage.techniques.plan import Plan
from ullage.techniques.technique import Semantics

Decide = Callable[[Search], FitReport]


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

    Raises:
        PlanError: the program allows no way to share the training.
    """

    def __init__(
        self, run: Runner, gpu: Gpu, allowed: Semantics, objective: Objective = Objective.TIME
    ) -> None:
        self._run = _remembering(run)
        self._gpu = gpu
        self._allowed = allowed
        self._objective = objective
        self._left_out: dict[str, str] = {}
        self._searches: dict[str, Search] = {}
        self._ways = self._measure()

    def search(self, decide: Decide, *, is_for_time: bool = True) -> FitReport:
        """The best plan of all ways.

        Args:
            decide: chooses the plan of one search.
            is_for_time: whether it chooses the shortest step; else no way is skipped.
        """
        reports: dict[str, FitReport] = {}
        gain_s, skipped = 0.0, dict[str, str]()
        for way in self._ways:
            best = _best(reports.values(), is_for_time=is_for_time)
            name = name_plan(way.actions, ())
            if is_for_time and best and best.best and way.step_s - gain_s >= best.best.step_s:
                skipped[name] = "its step is longer than that of the plan found"
                continue
            report = reports[name] = _under(way.actions, decide(self._of(way, name)))
            if report.front:
                gain_s = max(gain_s, report.as_it_is.step_s - report.front[0][0])
        chosen = _best(reports.values(), is_for_time=is_for_time) or next(iter(reports.values()))
        return self._joined(chosen, list(reports.values()), skipped)

    def _of(self, way: _Way, name: str) -> Search:
        if name not in self._searches:
            self._searches[name] = Search(
                self._run, self._gpu, self._allowed, way.plan, objective=self._objective
            )
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


def _best(reports: Iterable[FitReport], *, is_for_time: bool) -> FitReport | None:
    pairs = [(report.best, report) for report in reports if report.best is not None]
    if is_for_time:
        return min(pairs, key=lambda pair: pair[0].step_s, default=(None, None))[1]
    return min(pairs, key=lambda pair: pair[0].used_bytes, default=(None, None))[1]


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
