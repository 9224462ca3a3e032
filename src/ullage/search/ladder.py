"""All plans worth a run, fastest first: each takes more time than the one before, and less memory.

The ladder depends on the program alone, not on the budget. So with a larger budget, the first rung
that fits is never slower. Each run corrects what the model expects of the rungs.

    ladder = Ladder(measurements, as_it_is)
    ladder.rungs[place], ladder.actions(ladder.rungs[place])
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest

import numpy as np

from ullage.act.techniques.catalog import TECHNIQUES
from ullage.act.techniques.technique import Action
from ullage.explain.run import RunReport
from ullage.log.model import Int64Array
from ullage.search.costs.expectations import (
    DIGITS,
    Case,
    Expectations,
    Look,
    Setting,
    make_settings,
    slack_of,
)
from ullage.search.costs.measure import Measured, Measurements
from ullage.search.costs.profile import read_profile
from ullage.search.findings import Key, key_of, kind_of
from ullage.search.menu import Actions, are_exclusive
from ullage.search.proposals import Rung
from ullage.search.solver.problem import Failure, Problem, Solution, make_problem
from ullage.search.solver.solve import GAP, lower_bound_s, relax, solve

# The choices of treatments that are worth a run, for any budget.

# How many limits are tried between the highest and the lowest peak.
_NUM_LIMITS = 64
_STEPS = 40
# Up to this many choices are all tried.
_FEW = 4096


def worth_trying(problems: Sequence[Problem]) -> list[Int64Array]:
    """Each choice once: no treatment, each treatment on k blocks, and the fastest choice below each
    of many limits in any of the problems.
    """
    choices = {tuple(choice.tolist()) for problem in problems for choice in _of(problem)}
    return [np.array(choice, dtype=np.int64) for choice in sorted(choices)]


def uniform(num_blocks: int, treatment: int) -> Iterator[Int64Array]:
    """For each k, one treatment on the first k blocks, and on k evenly spaced ones."""
    for k in range(1, num_blocks + 1):
        first = np.zeros(num_blocks, dtype=np.int64)
        first[:k] = treatment
        yield first
        spaced = np.zeros(num_blocks, dtype=np.int64)
        spaced[(np.arange(k) * num_blocks) // k] = treatment
        yield spaced


def _of(problem: Problem) -> Iterator[Int64Array]:
    num, kinds = problem.num_blocks, problem.num_treatments
    yield np.zeros(num, dtype=np.int64)
    for treatment in range(1, kinds):
        yield from uniform(num, treatment)
    if kinds > 1 and num > 0:
        yield from _every(num, kinds) if kinds**num <= _FEW else _below_limits(problem)


def _every(num: int, kinds: int) -> Iterator[Int64Array]:
    for number in range(kinds**num):
        yield np.array([number // kinds**place % kinds for place in range(num)], dtype=np.int64)


def _below_limits(problem: Problem) -> Iterator[Int64Array]:
    """The fastest choices below limits that fall from the peak of the unchanged program."""
    peak = problem.peak_bytes(np.zeros(problem.num_blocks, dtype=np.int64))
    lowest = min(
        problem.peak_bytes(np.full(problem.num_blocks, treatment, dtype=np.int64))
        for treatment in range(problem.num_treatments)
    )
    step = max(1, (peak - lowest) // _NUM_LIMITS)
    limit = peak - step
    while limit > 0:
        solution = relax(problem, limit, _STEPS)
        if solution is None:
            return
        yield solution.choice
        limit = min(limit, solution.peak_bytes) - step


_CLOSER_LOOKS = 32
_ORDER = tuple(TECHNIQUES)


class Ladder:
    """All plans worth a run.

    Attributes:
        rungs: fastest first, each taking less memory than the one before.
        step_s: seconds of a step of the unchanged program.
    """

    def __init__(self, known: Measurements, base: Measured) -> None:
        kinds = [base, *known.treatments]
        self._measured = known
        self._problem = make_problem(
            [kind.profile for kind in kinds], [kind.seconds.blocks for kind in kinds]
        )
        self._settings = list(make_settings(known.moves, base))
        self.step_s = base.seconds.step
        levels = self._problem.levels(np.zeros(self._problem.num_blocks, dtype=np.int64))
        leanest = min(self._settings, key=lambda setting: int((levels + setting.more_bytes).max()))
        choices = worth_trying([self._problem, _under(self._problem, leanest.more_bytes)])
        self._choices = np.stack(choices)
        self._stretches = list(base.profile.rest_bytes)
        slacks = np.array([slack_of(kind.device.totals) for kind in kinds])
        self._expected = Expectations(self._settings, slacks)
        self._levels = np.stack([self._problem.levels(choice) for choice in choices])
        extra_s = np.array([setting.extra_s for setting in self._settings])
        self._times = extra_s[:, None] + np.array(
            [self._problem.time_s(choice) for choice in choices]
        )
        expected = [
            self._expected.of(n, self._choices, self._levels) for n in range(len(self._settings))
        ]
        self._peaks, self._reserved = (np.stack(figures) for figures in zip(*expected, strict=True))
        self._goes = np.array([self._goes_with(setting) for setting in self._settings])
        self.rungs = self._climb()

    def actions(self, rung: Rung) -> Actions:
        """The actions of a rung: its moves, and each treatment with its modules.

        Actions that differ only in their modules are merged. They are in the order of the
        catalogue, in which they are applied.
        """
        by_key = {key_of((action,)): action for action in self._settings[rung.setting].actions}
        choice = self._choices[rung.choice]
        for number, measured in enumerate(self._measured.treatments, start=1):
            paths = [
                block.path
                for block, chosen in zip(self._measured.blocks, choice, strict=True)
                if chosen == number
            ]
            for action in measured.actions if paths else ():
                key = kind_of((action,))
                earlier = by_key.get(key, replace(action, modules=()))
                by_key[key] = replace(action, modules=(*earlier.modules, *paths))
        ordered = sorted(by_key.values(), key=lambda action: _ORDER.index(action.technique))
        return tuple(self._in_order(action) for action in ordered)

    def rivals(
        self, than: Rung | None, room_bytes: int, tried: Collection[tuple[int, int]]
    ) -> list[Rung]:
        """Plans that would fit with the least slack of their setting, though the model expects no
        fit: in turn the nearest to the limit, and the fastest under a setting without runs.

        Args:
            than: the plans are faster than this rung; None: there is no such limit.
            room_bytes: the most that the allocator may reserve.
            tried: the places of the rungs that ran; plans with equal treatments and time are left
                out too.
        """
        numbers = range(len(self._settings))
        is_known = [self._expected.is_known(number) for number in numbers]
        least = [min(case.slack for case in self._expected.cases(number)) for number in numbers]
        may = self._goes & (self._peaks * (1.0 + np.array(least)[:, None]) <= room_bytes)
        if than is not None:
            may &= self._times < than.time_s - 10.0**-DIGITS
        places = np.argwhere(may)[np.argsort(self._reserved[may], kind="stable")]
        done = {(choice, round(self._times[setting, choice], DIGITS)) for setting, choice in tried}
        near, unknown = dict[float, Rung](), dict[float, Rung]()
        for rung in map(self._rung, *places.T.tolist()):
            if (rung.choice, round(rung.time_s, DIGITS)) in done:
                continue
            if is_known[rung.setting]:
                near.setdefault(round(rung.time_s, DIGITS), rung)
            else:
                unknown.setdefault(round(self._settings[rung.setting].extra_s, DIGITS), rung)
        both = zip_longest(near.values(), sorted(unknown.values()))
        return [rung for pair in both for rung in pair if rung is not None]

    def bound_s(self, rung: Rung) -> float:
        """The least time of a step with any mixture for which the allocator is expected to hold no
        more than for this rung.

        The setting with the lowest bound is solved exactly where HiGHS is installed, and then the
        next, until no bound rises.
        """
        cases = [case for case in self._unbeaten() if case.extra_s < rung.time_s]
        limits = [int(rung.reserved_bytes / (1.0 + case.slack)) for case in cases]
        bounds = {
            number: case.extra_s + lower_bound_s(_under(self._problem, case.more_bytes), limit)
            for number, (case, limit) in enumerate(zip(cases, limits, strict=True))
        }
        for _ in range(_CLOSER_LOOKS):
            lowest = min(bounds, key=bounds.__getitem__, default=None)
            if lowest is None or bounds[lowest] >= rung.time_s * (1 - GAP):
                break
            case = cases[lowest]
            answer = solve(_under(self._problem, case.more_bytes), limits[lowest])
            if answer is Failure.INFEASIBLE:
                bounds.pop(lowest)  # no choice has a peak as low
            elif isinstance(answer, Solution) and case.extra_s + answer.bound_s > bounds[lowest]:
                bounds[lowest] = case.extra_s + answer.bound_s
            else:
                break  # the solver knows no better: the bound stays
        return self.step_s + min([rung.time_s, *bounds.values()])

    def _unbeaten(self) -> list[Case]:
        """The cases of all settings that no other case beats in both time and memory."""
        goes = np.flatnonzero(self._goes.any(axis=1)).tolist()
        cases = [case for number in goes for case in self._expected.cases(number)]
        unbeaten: list[Case] = []
        for case in sorted(
            cases, key=lambda case: (case.extra_s, case.slack, case.more_bytes.sum())
        ):
            if not any(
                other.slack <= case.slack and (other.more_bytes <= case.more_bytes).all()
                for other in unbeaten  # none takes longer: they are in order
            ):
                unbeaten.append(case)
        return unbeaten

    def learn(self, rung: Rung, report: RunReport) -> None:
        """Corrects the model with the run of a rung: for this choice and the ones most like it,
        under the same setting or one with the same time.
        """
        place = rung.setting, rung.choice
        setting = self._settings[rung.setting]
        profile = read_profile(report.processes[0].record, self._measured.blocks)
        more = [
            profile.rest_bytes[stretch]
            + int(profile.kept_bytes[profile.live_blocks[stretch]].sum())
            - int(level)
            if stretch in profile.rest_bytes
            else int(usual)
            for stretch, level, usual in zip(
                self._stretches, self._levels[rung.choice], setting.more_bytes, strict=True
            )
        ]
        totals = report.devices[0].totals
        slack = float(self._reserved[place] / self._peaks[place]) - 1.0
        if not totals.num_alloc_retries:
            slack = slack_of(totals)
        look = Look(self._choices[rung.choice], np.array(more, dtype=np.int64), slack)
        for number in self._expected.learn(rung.setting, look):
            expected = self._expected.of(number, self._choices, self._levels)
            self._peaks[number], self._reserved[number] = expected
        self.rungs = self._climb()

    def leave_out(self, kinds: Key) -> None:
        """Removes all plans that have all of these actions, on any modules."""
        for number, setting in enumerate(self._settings):
            rest = set(kinds) - set(key_of(setting.actions))
            done = [kind_of(treatment.actions) for treatment in self._measured.treatments]
            with_it = np.ones(len(self._choices), dtype=np.bool_)
            for kind in rest:
                those = [place for place, keys in enumerate(done, start=1) if kind in keys]
                with_it &= np.isin(self._choices, those).any(axis=1)
            self._goes[number] &= ~with_it
        self.rungs = self._climb()

    def _climb(self) -> list[Rung]:
        """The Pareto front of all choices under all settings."""
        reserved, times = self._reserved.ravel(), self._times.ravel()
        allowed = np.flatnonzero(self._goes)
        order = allowed[np.lexsort((reserved[allowed], times[allowed]))]
        least = np.minimum.accumulate(reserved[order])
        is_best = np.append(np.ones(min(1, len(least)), np.bool_), least[1:] < least[:-1])
        places = np.unravel_index(order[is_best], self._times.shape)
        return [self._rung(*map(int, place)) for place in zip(*places, strict=True)]

    def _rung(self, setting: int, choice: int) -> Rung:
        place = setting, choice
        return Rung(
            float(self._times[place]), int(self._reserved[place]), int(self._peaks[place]), *place
        )

    def _goes_with(self, setting: Setting) -> list[bool]:
        apart = [
            number
            for number, treatment in enumerate(self._measured.treatments, start=1)
            if any(
                are_exclusive(action, move)
                for action in treatment.actions
                for move in setting.actions
            )
        ]
        return [not np.isin(choice, apart).any() for choice in self._choices]

    def _in_order(self, action: Action) -> Action:
        paths = set(action.modules)
        return replace(
            action,
            modules=tuple(block.path for block in self._measured.blocks if block.path in paths),
        )


def _under(problem: Problem, more_bytes: Int64Array) -> Problem:
    return replace(problem, rest_bytes=problem.rest_bytes + more_bytes[:, None])
