"""The search: measures a program once, then finds the fastest plan that fits a memory budget.

It starts no process itself: a `Runner` does, and returns the report of each run.

    search = Search(run, gpu, Semantics.SAME)
    search.fastest(budget_bytes).best, search.leanest(budget_bytes).best
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ullage.act.techniques.plan import Plan
from ullage.act.techniques.replaying.outcome import Replayed
from ullage.act.techniques.technique import Semantics
from ullage.explain.run import RunReport
from ullage.explain.verdict import ExitCode, Verdict
from ullage.facts.gpus.catalog import Gpu
from ullage.search.costs.clocked import Timed, timed
from ullage.search.costs.measure import Measurements, Runner, RunRequest
from ullage.search.findings import (
    INTERRUPTED,
    LATE,
    Candidate,
    FitReport,
    Key,
    Seen,
    failed,
    key_of,
    kind_of,
    name_plan,
    with_prediction,
)
from ullage.search.ladder import Ladder
from ullage.search.menu import Actions
from ullage.search.objective import Objective
from ullage.search.outcomes import (
    as_seen,
    best_first,
    fastest_fitting,
    is_smooth,
    judge,
    with_reason,
)
from ullage.search.proposals import Rung, contenders, next_rungs
from ullage.search.replays import Replays
from ullage.search.runs.search import search
from ullage.search.sizes.smallest import Smallest, find_smallest

# The runs of plans on the device of a search, each made once, and what the clock says of them.


class DeviceRuns:
    """The runs of plans on a device; each is made once.

    Args:
        run: makes runs.
        gpu: the device.
        known: the runs of the program and of single techniques.
        replays: those of plans with real numbers.
    """

    def __init__(self, run: Runner, gpu: Gpu, known: Measurements, replays: Replays) -> None:
        self._run = run
        self._gpu = gpu
        self._measured = known
        self._replays = replays
        self._reports: dict[Key, RunReport] = {}
        self._times: dict[Key, Timed] = {}
        self._confirmed: set[Key] = set()

    def see(self, plans: Sequence[Actions], budget_bytes: int) -> list[Seen]:
        """Runs plans, unless they ran before."""
        by_key = {key_of(plan): plan for plan in plans}
        new = [plan for key, plan in by_key.items() if key not in self._reports]
        requests = [RunRequest(self._measured.plan_to_run(plan), self._gpu) for plan in new]
        for actions, report in zip(new, self._run(requests) if requests else [], strict=True):
            self._note(actions, report)
        return [judge(self._reports[key_of(plan)], budget_bytes) for plan in plans]

    def confirm(self, actions: Actions, budget_bytes: int) -> bool:
        """True if a plan fits in a run from the program's first line in a process of its own."""
        key = key_of(actions)
        if key not in self._confirmed:
            request = RunRequest(self._measured.plan_to_run(actions), self._gpu, is_fresh=True)
            (report,) = self._run([request])
            self._note(actions, report)
            self._confirmed.add(key)
        return judge(self._reports[key], budget_bytes).fits

    def learnable(self, actions: Actions) -> RunReport:
        """The run of a plan that ran on the device; with unlimited memory if it did not fit."""
        report = self._reports[key_of(actions)]
        if report.verdict is Verdict.OUT_OF_MEMORY:
            (report,) = self._run([RunRequest(self._measured.plan_to_run(actions))])
            self._note_time(actions, report)
        return report

    def seen(self, actions: Actions, budget_bytes: int) -> Seen | None:
        """The result of a run of a plan; None: it did not run."""
        if (report := self._reports.get(key_of(actions))) is None:
            return None
        observation = judge(report, budget_bytes)
        if difference := self._replays.difference(actions):
            return replace(observation, fits=False, reason=f"replayed, {difference}")
        return observation

    def time(self, actions: Actions) -> Timed | None:
        """The time of a plan's step, by its last run that was timed; None: there is none."""
        return self._times.get(key_of(actions))

    def shortest_s(self, plans: Sequence[Actions]) -> float:
        """The likely seconds of the shortest step of these plans; 0: none was timed."""
        times = [self.time(plan) for plan in plans]
        return min((time.step.s for time in times if time is not None), default=0.0)

    def _note(self, actions: Actions, report: RunReport) -> None:
        self._reports[key_of(actions)] = report
        self._note_time(actions, report)

    def _note_time(self, actions: Actions, report: RunReport) -> None:
        if (time := timed(report)) is not None:
            self._times[key_of(actions)] = time


_AT_ONCE = 2
# Ends a search in which runs take much more memory than the model expects.
_MAX_ROUNDS = 24
# Plans that are run though the model expects no fit, once no faster plan is left.
_RIVALS = 8
# The share of the time limit for the runs of single techniques.
_SHARE_OF_MEASURING = 0.5


class _Round(NamedTuple):
    """Rungs to run together, and how many of them the model does not expect to be the best."""

    rungs: list[Rung]
    num_rivals: int = 0


@dataclass(frozen=True, slots=True)
class _Climb:
    """The rungs that ran, by place: does each fit a budget; and how many more there may be."""

    fits: Mapping[tuple[int, int], bool]
    rounds_left: int
    rivals_left: int


class Search:
    """The search for one program on one GPU; it makes each run once.

    Args:
        run: makes runs.
        gpu: the device.
        allowed: what techniques may change.
        under: a plan that is part of all runs; see `Measurements`.
        objective: what makes a plan the best of those that fit; `leanest` ignores it.
        is_late: whether this share of the time limit has passed.
    """

    def __init__(
        self,
        run: Runner,
        gpu: Gpu,
        allowed: Semantics,
        under: Plan | None = None,
        *,
        objective: Objective = Objective.TIME,
        is_late: Callable[[float], bool] = lambda _share: False,
    ) -> None:
        self._run = run
        self._gpu = gpu
        self._allowed = allowed
        self._objective = objective
        self._is_late = is_late
        self._measured = Measurements(run, under)
        self._replays = Replays(run, self._measured)
        self._runs = DeviceRuns(run, gpu, self._measured, self._replays)
        self._tried: dict[tuple[int, int], Rung] = {}
        self._learned: set[Key] = set()
        self._ladder: Ladder | None = None
        self._is_begun = False

    def begin(self) -> None:
        """Measures the program and the single techniques; a second call does nothing."""
        if self._is_begun:
            return
        base = self._measured.measure_program()
        if base is not None:
            late = functools.partial(self._is_late, _SHARE_OF_MEASURING)
            self._measured.measure_techniques(self._allowed, base, late)
            self._ladder = Ladder(self._measured, base)
        self._is_begun = True

    def fastest(self, budget_bytes: int) -> FitReport:
        """The fastest rung of the ladder whose run fits, by the clock where it was timed."""
        self.begin()
        if self._ladder is None:
            return self._failed(budget_bytes)
        # Rungs without retries first: a retry makes a step slower than the model says.
        rung = self._fastest_rung(self._ladder, budget_bytes, most_retries=0)
        if rung is None:
            rung = self._fastest_rung(self._ladder, budget_bytes, most_retries=None)
        if rung is None and self._is_late(1.0):
            return self._fastest_technique(budget_bytes)
        return self._report_rung(self._ladder, rung, budget_bytes)

    def _fastest_rung(
        self, ladder: Ladder, budget_bytes: int, *, most_retries: int | None
    ) -> Rung | None:
        """The fastest rung whose run fits with at most this many retries of the allocator.

        It also fits in a run from the program's first line, and its replay trains the same.
        """
        rounds_left = _MAX_ROUNDS
        while True:
            climbed = self._climb(ladder, budget_bytes, most_retries, rounds_left)
            fitting = [self._tried[place] for place, fits in climbed.fits.items() if fits]
            candidates = {each: self._candidate(ladder, each, budget_bytes) for each in fitting}
            confirmed = (
                each
                for each in best_first(candidates, self._objective)
                if self._runs.confirm(candidates[each].actions, budget_bytes)
            )
            rung = next(confirmed, None)
            if rung is None or self._is_alike(ladder, ladder.actions(rung)):
                return rung
            rounds_left = climbed.rounds_left

    def _climb(
        self, ladder: Ladder, budget_bytes: int, most_retries: int | None, rounds_left: int
    ) -> _Climb:
        """Runs rungs until the model expects none of the others to be faster and to fit."""
        room = budget_bytes - self._outside_bytes

        def propose(climb: _Climb) -> _Round | None:
            if not climb.rounds_left or self._is_late(1.0):
                return None
            if rungs := next_rungs(ladder.rungs, climb.fits, room, _AT_ONCE):
                return _Round(rungs)
            # The model may be wrong about those that it expects not to fit, or to be slower.
            fitting = [self._tried[place] for place, is_fitting in climb.fits.items() if is_fitting]
            limit_s = self._runs.shortest_s(list(map(ladder.actions, fitting))) - ladder.step_s
            rivals = [
                *ladder.rivals(min(fitting, default=None), room, climb.fits),
                *contenders(ladder.rungs, climb.fits, room, limit_s),
            ]
            rivals = rivals[: min(_AT_ONCE, climb.rivals_left)]
            return _Round(rivals, num_rivals=len(rivals)) if rivals else None

        def attempt(trial: _Round) -> list[Seen]:
            return self._runs.see(list(map(ladder.actions, trial.rungs)), budget_bytes)

        def judge(climb: _Climb, trial: _Round, observations: list[Seen]) -> _Climb:
            fits = dict(climb.fits)
            for rung, observation in zip(trial.rungs, observations, strict=True):
                fits[rung.place] = observation.fits and is_smooth(observation, most_retries)
                self._tried[rung.place] = rung
                self._learn(ladder, rung, ladder.actions(rung))
            return _Climb(fits, climb.rounds_left - 1, climb.rivals_left - trial.num_rivals)

        fits = {
            rung.place: observation.fits and is_smooth(observation, most_retries)
            for rung in self._tried.values()
            if (observation := self._runs.seen(ladder.actions(rung), budget_bytes)) is not None
        }
        return search(_Climb(fits, rounds_left, _RIVALS), propose, attempt, judge)

    def leanest(self, budget_bytes: int) -> FitReport:
        """The one of the last rungs whose run takes the least memory."""
        self.begin()
        ladder = self._ladder
        if ladder is None:
            return self._failed(budget_bytes)
        while True:
            rungs = ladder.rungs[-2 * _AT_ONCE :]
            self._tried |= {rung.place: rung for rung in rungs}
            plans = [ladder.actions(rung) for rung in rungs]
            observations = self._runs.see(plans, budget_bytes)
            used = {
                rung: observation.used_bytes
                for rung, observation in zip(rungs, observations, strict=True)
                if observation.fits
            }
            least = min(used, key=used.__getitem__, default=None)
            actions = () if least is None else ladder.actions(least)
            if self._is_alike(ladder, actions):
                return self._report_rung(ladder, least, budget_bytes)

    def _is_alike(self, ladder: Ladder, actions: Actions) -> bool:
        """True if the replay of a plan trains the same; excludes a plan that does not."""
        if not actions or self._replays.of(actions).is_same:
            return True
        fewest = self._replays.note_different(actions)
        self._measured.left_out[name_plan(fewest, ())] = self._replays.difference(fewest)
        ladder.leave_out(kind_of(fewest))
        return False

    def smallest_gpu(self, catalogued: Sequence[Gpu]) -> Smallest | None:
        """The smallest GPU on which one of the leanest plans fits."""
        self.begin()
        if self._ladder is None:
            return None
        lean = [self._ladder.actions(rung) for rung in reversed(self._ladder.rungs[-_AT_ONCE:])]
        measured = self._measured
        plans = {
            name_plan(actions, measured.blocks): measured.plan_to_run(actions) for actions in lean
        }
        return find_smallest(self._run, plans, catalogued)

    def _learn(self, ladder: Ladder, rung: Rung, actions: Actions) -> None:
        key = key_of(actions)
        if key in self._learned:
            return
        self._learned.add(key)
        report = self._runs.learnable(actions)
        if report.verdict is Verdict.FITS:
            ladder.learn(rung, report)
        elif report.verdict is Verdict.FAILED:
            fewest = self._fewest_refused(actions)
            self._measured.left_out[name_plan(fewest, ())] = report.reason
            ladder.leave_out(kind_of(fewest))

    def _fewest_refused(self, actions: Actions) -> Actions:
        for action in actions:
            fewer = tuple(other for other in actions if other != action)
            if self._runs.see([fewer], self._gpu.total_bytes)[0].is_refused:
                actions = fewer
        return actions

    @property
    def _outside_bytes(self) -> int:
        device = None if self._measured.base is None else self._measured.base.device
        return 0 if device is None else device.peak_used_bytes - device.totals.peak_reserved_bytes

    def _report_rung(self, ladder: Ladder, rung: Rung | None, budget_bytes: int) -> FitReport:
        listed = [*self._techniques(budget_bytes)]
        listed += [self._candidate(ladder, rung, budget_bytes) for rung in self._tried.values()]
        best = None if rung is None else self._candidate(ladder, rung, budget_bytes)
        return replace(
            self._report(listed, best, budget_bytes),
            front=tuple(
                (ladder.step_s + rung.time_s, rung.reserved_bytes + self._outside_bytes)
                for rung in ladder.rungs
            ),
            bound_s=0.0
            if rung is None or best is None
            else best.step_s * min(1.0, ladder.bound_s(rung) / (ladder.step_s + rung.time_s)),
            ended=LATE if self._is_late(1.0) else "",
            exit_code=ExitCode.ANSWER_IS_NO if best is None else ExitCode.FINE,
        )

    def _report(
        self, listed: list[Candidate], best: Candidate | None, budget_bytes: int
    ) -> FitReport:
        """The report of these plans, the unchanged program first; of two equal ones, the later."""
        plans = {key_of(candidate.actions): candidate for candidate in listed}.values()
        return replace(
            self._failed(budget_bytes),
            as_it_is=listed[0],
            best=best,
            plan=self._plan(best, budget_bytes),
            candidates=tuple(
                with_reason(plan, best, budget_bytes)
                for plan in sorted(plans, key=lambda plan: (plan.step_s, plan.name))
            ),
            failure="",
            replayed=self._replayed(best),
            made_for=self._measured.made_for,
        )

    def _failed(self, budget_bytes: int) -> FitReport:
        measured = self._measured
        trains_none = "it trains no model that a plan could be made for"
        report = failed(measured.first, self._gpu, budget_bytes, trains_none)
        return replace(report, blocks=measured.blocks, left_out=measured.left_out)

    def _candidate(self, ladder: Ladder, rung: Rung, budget_bytes: int) -> Candidate:
        used = rung.reserved_bytes + self._outside_bytes
        figures = ladder.step_s + rung.time_s, rung.peak_bytes, used
        return self._make_candidate(ladder.actions(rung), figures, budget_bytes)

    def _techniques(self, budget_bytes: int) -> Iterator[Candidate]:
        """The unchanged program, and each technique by itself on all blocks, as they were
        measured.
        """
        for measured in self._measured.all:
            used = measured.device.peak_used_bytes
            figures = measured.seconds.step, measured.profile.peak_bytes, used
            yield self._make_candidate(measured.actions, figures, budget_bytes, measured.time)

    def _make_candidate(
        self,
        actions: Actions,
        figures: tuple[float, int, int],
        budget_bytes: int,
        time: Timed | None = None,
    ) -> Candidate:
        """A plan with its step_s, peak_bytes and used_bytes, the first and the last as its run
        showed, if any.
        """
        step_s, peak_bytes, used_bytes = figures
        if (observation := self._runs.seen(actions, budget_bytes)) is not None:
            used_bytes = observation.used_bytes
        if (time := self._runs.time(actions) or time) is not None:
            step_s = time.step.s
        name = name_plan(actions, self._measured.blocks)
        return Candidate(name, actions, step_s, peak_bytes, used_bytes, observation, time=time)

    def _plan(self, best: Candidate | None, budget_bytes: int) -> Plan | None:
        if best is None:
            return None
        plan, replayed = self._measured.plan_to_run(best.actions), self._replayed(best)
        words = replayed.text if replayed else ""
        return with_prediction(
            plan, best.seen, best.step_s, self._gpu, budget_bytes, replayed=words
        )

    def _replayed(self, best: Candidate | None) -> Replayed | None:
        if best is None or not best.actions or not self._replays.is_made(best.actions):
            return None
        return self._replays.of(best.actions)

    def _fastest_technique(self, budget_bytes: int) -> FitReport:
        """The answer where the time limit ended the search before any plan ran on the device: the
        fastest single technique whose replay trains the same.
        """
        while (report := self.so_far(budget_bytes, LATE)) is not None:
            actions = () if report.best is None else report.best.actions
            if not actions or self._replays.is_made(actions):
                return report
            if not self._replays.of(actions).is_same:
                self._replays.note_different(actions)
        return self._failed(budget_bytes)

    def so_far(self, budget_bytes: int, ended: str = INTERRUPTED) -> FitReport | None:
        """The answer of a search that was ended early, without runs; None: nothing is known."""
        # What stays within the budget with unlimited memory does so on the device.
        listed = [as_seen(each, budget_bytes) for each in self._techniques(budget_bytes)]
        if not listed:
            return None
        if (ladder := self._ladder) is not None:
            rungs = self._tried.values()
            listed += [self._candidate(ladder, rung, budget_bytes) for rung in rungs]
        alike = [plan for plan in listed if not self._replays.difference(plan.actions)]
        best = fastest_fitting(alike, self._objective)
        report = self._report(listed, best, budget_bytes)
        code = ExitCode.ANSWER_IS_NO if best is None else ExitCode.FINE
        return replace(
            report, ended=ended, exit_code=ExitCode.INTERRUPTED if ended is INTERRUPTED else code
        )
