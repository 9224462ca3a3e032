"""All plans worth trying, fastest first: each takes longer than the one before it, and less memory.

The ladder hangs on the program alone, not on how much memory there is. So with more memory, a rung
that was the first to fit still fits, and the first that fits is never a slower one. What is
expected of its rungs is set right as plans are run.

    ladder = Ladder(measurements, as_it_is)
    ladder.rungs[place], ladder.actions(ladder.rungs[place])
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ullage.explain.run import RunReport
from ullage.plan.certificate import is_available
from ullage.plan.choices import worth_trying
from ullage.plan.findings import Key, key_of
from ullage.plan.measure import Measured, Measurements
from ullage.plan.menu import Actions, are_exclusive, settings
from ullage.plan.problem import Problem, make_problem
from ullage.plan.profile import read_profile
from ullage.plan.solve import GAP, least_s, solve
from ullage.plan.trying import Rung
from ullage.techniques.catalog import TECHNIQUES
from ullage.techniques.technique import Action
from ullage.trace.model import DeviceTotals, Int64Array

_LEAST_SLACK = 1e-3
_LOOKS = 8
_ORDER = tuple(TECHNIQUES)


class Foreseen(NamedTuple):
    """A plan by the model: how long a step takes, what the allocator is expected to hold, and the
    most that is allocated.
    """

    step_s: float
    reserved_bytes: int
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class _Setting:
    """Several moves together: what they take more in each stretch, how much longer a step takes,
    and by which factor the slack of the allocator changes.
    """

    actions: Actions
    more_bytes: Int64Array
    extra_s: float
    slack: float


class Ladder:
    """All mixtures worth trying.

    What a setting takes and costs is that of its moves, added up stretch by stretch.

    Attributes:
        rungs: fastest first, each taking less memory than the one before.
        step_s: seconds of a step as it is.
    """

    def __init__(self, known: Measurements, base: Measured) -> None:
        kinds = [base, *known.treatments]
        self._known = known
        self._problem = make_problem(
            [one.profile for one in kinds], [one.seconds.blocks for one in kinds]
        )
        self._settings = list(_settings(known.moves, base))
        self.step_s = base.seconds.step
        levels = self._problem.levels(np.zeros(self._problem.num_blocks, dtype=np.int64))
        leanest = min(self._settings, key=lambda one: int((levels + one.more_bytes).max()))
        self._choices = worth_trying([self._problem, _under(self._problem, leanest)])
        self._stretches = list(base.profile.rest_bytes)
        self._slacks = np.array([slack_of(one.device.totals) for one in kinds])
        self._levels = np.stack([self._problem.levels(one) for one in self._choices])
        self._times = np.array([self._problem.time_s(one) for one in self._choices])
        self._slack = np.array([self._slack_of(one) for one in self._choices])
        self._goes = np.array([self._goes_with(one) for one in self._settings])
        self.rungs = self._climb()

    def actions(self, rung: Rung) -> Actions:
        """What a rung does: its moves, and each treatment with the modules that get it; what is
        done twice, once for all modules. In the order of the catalogue, which is that of applying.
        """
        found = {key_of((one,)): one for one in self._settings[rung.setting].actions}
        choice = self._choices[rung.choice]
        for number, measured in enumerate(self._known.treatments, start=1):
            paths = [
                block.path
                for block, chosen in zip(self._known.blocks, choice, strict=True)
                if chosen == number
            ]
            for action in measured.actions if paths else ():
                key = key_of((replace(action, modules=()),))
                earlier = found.get(key, replace(action, modules=()))
                found[key] = replace(action, modules=(*earlier.modules, *paths))
        ordered = sorted(found.values(), key=lambda one: _ORDER.index(one.technique))
        return tuple(self._in_order(one) for one in ordered)

    def foresee(self, actions: Actions) -> Foreseen:
        """What any plan of these moves and treatments takes, on a rung or not."""
        moves = {key_of((one,)) for one in actions if not one.modules}
        setting = next(
            one for one in self._settings if {key_of((move,)) for move in one.actions} == moves
        )
        numbers = {_kind(one.actions): place for place, one in enumerate(self._known.treatments, 1)}
        paths = [block.path for block in self._known.blocks]
        done = [[one for one in actions if path in one.modules] for path in paths]
        choice = np.array([numbers[_kind(one)] if one else 0 for one in done], dtype=np.int64)
        peak = int((self._problem.levels(choice) + setting.more_bytes).max())
        slack = self._slack_of(choice)
        time_s = self.step_s + self._problem.time_s(choice) + setting.extra_s
        return Foreseen(time_s, int(peak * (1.0 + slack * setting.slack)), peak)

    def bound_s(self, rung: Rung) -> float:
        """No mixture for which the allocator is expected to hold as little as for a rung takes a
        step of less.

        The setting with the lowest bound is looked at again, exactly, where HiGHS is there.
        """
        bounds = {}
        for number in self._unbeaten():
            setting = self._settings[number]
            if setting.extra_s < rung.time_s:
                found_s = least_s(_under(self._problem, setting), self._limit(setting, rung))
                bounds[number] = setting.extra_s + found_s
        for _ in range(_LOOKS):
            lowest = min(bounds, key=bounds.__getitem__, default=None)
            if lowest is None or bounds[lowest] >= rung.time_s * (1 - GAP):
                break
            setting = self._settings[lowest]
            proved = solve(_under(self._problem, setting), self._limit(setting, rung))
            if proved is None and is_available():
                bounds.pop(lowest)  # nothing under it has a peak as low
            elif proved is None:
                break
            elif setting.extra_s + proved.bound_s > bounds[lowest]:
                bounds[lowest] = setting.extra_s + proved.bound_s
            else:
                break
        return self.step_s + min([rung.time_s, *bounds.values()])

    def _unbeaten(self) -> list[int]:
        """The settings of which no other takes as little time and as little memory everywhere."""

        def rank(number: int) -> tuple[float, float, int]:
            one = self._settings[number]
            return one.extra_s, one.slack, int(one.more_bytes.sum())

        kept: list[int] = []
        for number in sorted(np.flatnonzero(self._goes.any(axis=1)).tolist(), key=rank):
            one = self._settings[number]
            others = [self._settings[place] for place in kept]
            if not any(
                other.slack <= one.slack and (other.more_bytes <= one.more_bytes).all()
                for other in others  # none takes longer: they are in order
            ):
                kept.append(number)
        return kept

    def learn(self, rung: Rung, report: RunReport) -> None:
        """What a whole run of a rung's plan showed: from now on it is expected of it, and as much
        more or less of all that is under the same setting.
        """
        setting = self._settings[rung.setting]
        seen = read_profile(report.processes[0].record, self._known.blocks)
        levels = self._levels[rung.choice] + setting.more_bytes
        more = setting.more_bytes + np.array(
            [
                seen.rest_bytes[one] + int(seen.kept_bytes[seen.held[one]].sum()) - int(level)
                if one in seen.rest_bytes
                else 0
                for one, level in zip(self._stretches, levels, strict=True)
            ],
            dtype=np.int64,
        )
        totals = report.devices[0].totals
        slack = setting.slack
        if not totals.num_alloc_retries:
            slack = slack_of(totals) / max(float(self._slack[rung.choice]), _LEAST_SLACK)
        self._settings[rung.setting] = replace(setting, more_bytes=more, slack=slack)
        self.rungs = self._climb()

    def leave_out(self, kinds: Key) -> None:
        """No plan in which all of these are, on whichever modules, is worth trying."""
        for number, setting in enumerate(self._settings):
            rest = set(kinds) - set(key_of(setting.actions))
            done = [_kind(one.actions) for one in self._known.treatments]
            with_it = np.ones(len(self._choices), dtype=np.bool_)
            for kind in rest:
                those = [place for place, keys in enumerate(done, start=1) if kind in keys]
                with_it &= np.isin(self._choices, those).any(axis=1)
            self._goes[number] &= ~with_it
        self.rungs = self._climb()

    def _limit(self, setting: _Setting, rung: Rung) -> int:
        """The most that may be allocated under a setting for as much reserved as a rung has."""
        return int(rung.reserved_bytes / (1.0 + float(self._slacks.min()) * setting.slack))

    def _climb(self) -> list[Rung]:
        """Of each choice under each setting, those that no other beats."""
        peaks = np.stack([(self._levels + one.more_bytes).max(axis=1) for one in self._settings])
        factors = np.array([one.slack for one in self._settings])
        reserved = (peaks * (1.0 + np.outer(factors, self._slack))).astype(np.int64)
        extra_s = np.array([one.extra_s for one in self._settings])
        times = extra_s[:, None] + self._times
        found = np.flatnonzero(self._goes)
        order = found[np.lexsort((reserved.ravel()[found], times.ravel()[found]))]
        least = np.minimum.accumulate(reserved.ravel()[order])
        is_best = np.append(np.ones(min(1, len(least)), np.bool_), least[1:] < least[:-1])
        return [
            Rung(float(times[place]), int(reserved[place]), int(peaks[place]), *map(int, place))
            for place in zip(*np.unravel_index(order[is_best], reserved.shape), strict=True)
        ]

    def _slack_of(self, choice: Int64Array) -> float:
        return float(self._slacks[choice].mean() if len(choice) else self._slacks[0])

    def _goes_with(self, setting: _Setting) -> list[bool]:
        """Of each choice, whether its treatments can be in a plan with the moves of a setting."""
        apart = [
            number
            for number, treatment in enumerate(self._known.treatments, start=1)
            if any(
                are_exclusive(one, move) for one in treatment.actions for move in setting.actions
            )
        ]
        return [not np.isin(choice, apart).any() for choice in self._choices]

    def _in_order(self, action: Action) -> Action:
        """Its modules in the order of the program."""
        named = set(action.modules)
        return replace(
            action, modules=tuple(one.path for one in self._known.blocks if one.path in named)
        )


def _kind(actions: Sequence[Action]) -> Key:
    """What is done, whichever modules it is done to."""
    return key_of([replace(one, modules=()) for one in actions])


def _settings(moves: Sequence[Measured], base: Measured) -> Iterator[_Setting]:
    by_key = {key_of(one.actions): one for one in moves}
    for actions in settings([one.actions[0] for one in moves]):
        measured = [by_key[key_of((action,))] for action in actions]
        more = np.zeros(len(base.profile.rest_bytes), dtype=np.int64)
        for one in measured:
            more += _more(one, base)
        least = max(slack_of(base.device.totals), _LEAST_SLACK)
        factors = [slack_of(one.device.totals) / least for one in measured]
        extra_s = sum(one.seconds.step - base.seconds.step for one in measured)
        yield _Setting(actions, more, extra_s, float(np.prod(factors)))


def _under(problem: Problem, setting: _Setting) -> Problem:
    return replace(problem, rest_bytes=problem.rest_bytes + setting.more_bytes[:, None])


def slack_of(totals: DeviceTotals) -> float:
    """How much more the allocator held at most than it gave out, as a share of that."""
    return totals.peak_reserved_bytes / max(totals.peak_allocated_bytes, 1) - 1.0


def _more(one: Measured, base: Measured) -> Int64Array:
    """What a move takes more in each stretch than the program as it is."""
    more = [
        one.profile.rest_bytes.get(stretch, rest) - rest
        for stretch, rest in base.profile.rest_bytes.items()
    ]
    return np.array(more, dtype=np.int64)
