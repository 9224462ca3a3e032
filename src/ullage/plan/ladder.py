"""All plans worth trying, fastest first: each takes longer than the one before it, and less memory.

The ladder hangs on the program alone, not on how much memory there is. So with more memory, a rung
that was the first to fit still fits, and the first that fits is never a slower one. What is
expected of its rungs is set right as plans are run.

    ladder = Ladder(measurements, as_it_is)
    ladder.rungs[place], ladder.actions(ladder.rungs[place])
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
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
_CLOSER_LOOKS = 32
# Times are told apart to a nanosecond.
_DIGITS = 9
_ORDER = tuple(TECHNIQUES)


class Expected(NamedTuple):
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


class _Look(NamedTuple):
    """A choice that was run under a setting: what the setting took more in each stretch, and how
    much more the allocator held than it gave out, as a share of that.
    """

    choice: Int64Array
    more_bytes: Int64Array
    slack: float


class _Case(NamedTuple):
    """What is expected of a part of the choices under a setting: how much longer a step takes than
    by the choice alone, what the setting takes more in each stretch, and the least slack.
    """

    extra_s: float
    more_bytes: Int64Array
    slack: float


class Ladder:
    """All mixtures worth trying.

    What a setting takes and costs is that of its moves, added up stretch by stretch, until choices
    were run under it: then what was seen of the one that is most like it is expected of each other.

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
        found = worth_trying([self._problem, _under(self._problem, leanest.more_bytes)])
        self._choices = np.stack(found)
        self._stretches = list(base.profile.rest_bytes)
        self._slacks = np.array([slack_of(one.device.totals) for one in kinds])
        self._levels = np.stack([self._problem.levels(one) for one in found])
        extra_s = np.array([one.extra_s for one in self._settings])
        self._times = extra_s[:, None] + np.array([self._problem.time_s(one) for one in found])
        self._looks: dict[int, list[_Look]] = {}
        told = [self._expect(n, self._choices, self._levels) for n in range(len(self._settings))]
        self._peaks, self._reserved = (np.stack(one) for one in zip(*told, strict=True))
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

    def foresee(self, actions: Actions) -> Expected:
        """What any plan of these moves and treatments takes, on a rung or not."""
        moves = {key_of((one,)) for one in actions if not one.modules}
        number, setting = next(
            (number, one)
            for number, one in enumerate(self._settings)
            if {key_of((move,)) for move in one.actions} == moves
        )
        numbers = {_kind(one.actions): place for place, one in enumerate(self._known.treatments, 1)}
        paths = [block.path for block in self._known.blocks]
        done = [[one for one in actions if path in one.modules] for path in paths]
        choice = np.array([numbers[_kind(one)] if one else 0 for one in done], dtype=np.int64)
        levels = self._problem.levels(choice)
        (peak,), (reserved,) = self._expect(number, choice[None], levels[None])
        time_s = self.step_s + self._problem.time_s(choice) + setting.extra_s
        return Expected(time_s, int(reserved), int(peak))

    def rivals(
        self, than: Rung | None, room_bytes: int, tried: Collection[tuple[int, int]]
    ) -> list[Rung]:
        """What would fit with the least slack that there is under its setting, though it is not
        expected to, on a rung or not: in turn the nearest to the room, and the fastest of those
        under settings of which nothing is known.

        Args:
            than: it is faster than this one; None: there is none.
            room_bytes: what the allocator may hold.
            tried: the places of those that were run; what has the same treatments and takes as long
                is left out too.
        """
        numbers = range(len(self._settings))
        is_known = [bool(self._looks_at(number)) for number in numbers]
        least = [min(one.slack for one in self._cases(number)) for number in numbers]
        may = self._goes & (self._peaks * (1.0 + np.array(least)[:, None]) <= room_bytes)
        if than is not None:
            may &= self._times < than.time_s - 10.0**-_DIGITS
        places = np.argwhere(may)[np.argsort(self._reserved[may], kind="stable")]
        done = {(choice, round(self._times[setting, choice], _DIGITS)) for setting, choice in tried}
        near, unknown = dict[float, Rung](), dict[float, Rung]()
        for rung in map(self._rung, *places.T.tolist()):
            if (rung.choice, round(rung.time_s, _DIGITS)) in done:
                continue
            if is_known[rung.setting]:
                near.setdefault(round(rung.time_s, _DIGITS), rung)
            else:
                unknown.setdefault(round(self._settings[rung.setting].extra_s, _DIGITS), rung)
        both = zip_longest(near.values(), sorted(unknown.values()))
        return [one for pair in both for one in pair if one is not None]

    def bound_s(self, rung: Rung) -> float:
        """No mixture for which the allocator is expected to hold as little as for a rung takes a
        step of less.

        What has the lowest bound is looked at again, exactly, where HiGHS is there.
        """
        cases = [one for one in self._unbeaten() if one.extra_s < rung.time_s]
        limits = [int(rung.reserved_bytes / (1.0 + one.slack)) for one in cases]
        bounds = {
            number: one.extra_s + least_s(_under(self._problem, one.more_bytes), limit)
            for number, (one, limit) in enumerate(zip(cases, limits, strict=True))
        }
        for _ in range(_CLOSER_LOOKS):
            lowest = min(bounds, key=bounds.__getitem__, default=None)
            if lowest is None or bounds[lowest] >= rung.time_s * (1 - GAP):
                break
            case = cases[lowest]
            proved = solve(_under(self._problem, case.more_bytes), limits[lowest])
            if proved is None and is_available():
                bounds.pop(lowest)  # nothing has a peak as low
            elif proved is None:
                break
            elif case.extra_s + proved.bound_s > bounds[lowest]:
                bounds[lowest] = case.extra_s + proved.bound_s
            else:
                break
        return self.step_s + min([rung.time_s, *bounds.values()])

    def _unbeaten(self) -> list[_Case]:
        """What may be expected of settings, of which no other takes as little time and as little
        memory everywhere.
        """
        goes = np.flatnonzero(self._goes.any(axis=1)).tolist()
        cases = [case for number in goes for case in self._cases(number)]
        kept: list[_Case] = []
        for one in sorted(cases, key=lambda one: (one.extra_s, one.slack, one.more_bytes.sum())):
            if not any(
                other.slack <= one.slack and (other.more_bytes <= one.more_bytes).all()
                for other in kept  # none takes longer: they are in order
            ):
                kept.append(one)
        return kept

    def _cases(self, number: int) -> list[_Case]:
        """By each look that there was at a setting, what it may take of any choice."""
        setting, looks = self._settings[number], self._looks_at(number)
        if not looks:
            slack = float(self._slacks.min()) * setting.slack
            return [_Case(setting.extra_s, setting.more_bytes, slack)]
        return [_Case(setting.extra_s, one.more_bytes, one.slack) for one in looks]

    def learn(self, rung: Rung, report: RunReport) -> None:
        """What a whole run of a rung's plan showed: from now on it is expected of it, and of what
        is most like it under the same setting, or under one that takes as long.
        """
        place = rung.setting, rung.choice
        setting = self._settings[rung.setting]
        seen = read_profile(report.processes[0].record, self._known.blocks)
        more = [
            seen.rest_bytes[one] + int(seen.kept_bytes[seen.held[one]].sum()) - int(level)
            if one in seen.rest_bytes
            else int(usual)
            for one, level, usual in zip(
                self._stretches, self._levels[rung.choice], setting.more_bytes, strict=True
            )
        ]
        totals = report.devices[0].totals
        slack = float(self._reserved[place] / self._peaks[place]) - 1.0
        if not totals.num_alloc_retries:
            slack = slack_of(totals)
        look = _Look(self._choices[rung.choice], np.array(more, dtype=np.int64), slack)
        self._looks.setdefault(rung.setting, []).append(look)
        for number in self._alike(rung.setting):
            told = self._expect(number, self._choices, self._levels)
            self._peaks[number], self._reserved[number] = told
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

    def _alike(self, number: int) -> list[int]:
        """Settings that take as long as one, and that one: such as are the same but for what makes
        the allocator hold less.
        """
        taken_s = round(self._settings[number].extra_s, _DIGITS)
        return [n for n, one in enumerate(self._settings) if round(one.extra_s, _DIGITS) == taken_s]

    def _looks_at(self, number: int) -> list[_Look]:
        """What was seen under a setting; else, under one that takes as long, what is to be expected
        of this one by it.
        """
        if number in self._looks:
            return self._looks[number]
        alike = self._alike(number)
        place = next((one for one in self._looks if one in alike), None)
        if place is None:
            return []
        own, other = self._settings[number], self._settings[place]
        more = own.more_bytes - other.more_bytes
        factor = own.slack / max(other.slack, _LEAST_SLACK)
        return [
            _Look(one.choice, one.more_bytes + more, one.slack * factor)
            for one in self._looks[place]
        ]

    def _expect(
        self, number: int, choices: Int64Array, levels: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        """Of choices under a setting, (C, N), with these levels, (C, W): the most that is
        allocated, and what the allocator holds.
        """
        setting, looks = self._settings[number], self._looks_at(number)
        if looks:
            # Of two that are as like, that with the lower slack: what it is too low for is run.
            looks = sorted(looks, key=lambda one: one.slack)
            nearest = np.stack([self._unlike(choices, one.choice) for one in looks]).argmin(axis=0)
            more = np.stack([one.more_bytes for one in looks])[nearest]
            slack = np.array([one.slack for one in looks])[nearest]
        else:
            more = setting.more_bytes
            slack = setting.slack * np.array([self._slack_of(one) for one in choices])
        peaks = (levels + more).max(axis=1)
        return peaks, (peaks * (1.0 + slack)).astype(np.int64)

    def _unlike(self, choices: Int64Array, seen: Int64Array) -> Int64Array:
        """How unlike choices, (C, N), are to one that was seen: by how many blocks get each
        treatment, and then by which; else each place of the same few would be tried in turn.
        """
        kinds = range(self._problem.num_treatments)
        counts = [(choices == kind).sum(axis=1) - (seen == kind).sum() for kind in kinds]
        found: Int64Array = np.abs(counts).sum(axis=0) * len(seen) + (choices != seen).sum(axis=1)
        return found

    def _climb(self) -> list[Rung]:
        """Of each choice under each setting, those that no other beats."""
        reserved, times = self._reserved.ravel(), self._times.ravel()
        found = np.flatnonzero(self._goes)
        order = found[np.lexsort((reserved[found], times[found]))]
        least = np.minimum.accumulate(reserved[order])
        is_best = np.append(np.ones(min(1, len(least)), np.bool_), least[1:] < least[:-1])
        places = np.unravel_index(order[is_best], self._times.shape)
        return [self._rung(*map(int, place)) for place in zip(*places, strict=True)]

    def _rung(self, setting: int, choice: int) -> Rung:
        place = setting, choice
        return Rung(
            float(self._times[place]), int(self._reserved[place]), int(self._peaks[place]), *place
        )

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


def _under(problem: Problem, more_bytes: Int64Array) -> Problem:
    return replace(problem, rest_bytes=problem.rest_bytes + more_bytes[:, None])


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
