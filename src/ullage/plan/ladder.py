"""All plans worth trying, fastest first: each takes longer than the one before it, and less memory.

The ladder hangs on the program alone, not on how much memory there is. So with more memory, a rung
that was the first to fit still fits, and the first that fits is never a slower one.

    ladder = Ladder(measurements, as_it_is)
    ladder.rungs[place], ladder.actions(ladder.rungs[place])
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ullage.plan.choices import worth_trying
from ullage.plan.findings import key_of
from ullage.plan.measure import Measured, Measurements
from ullage.plan.menu import Actions, settings
from ullage.plan.problem import FloatArray, Problem, make_problem
from ullage.plan.solve import GAP, relax, solve
from ullage.techniques.technique import Action
from ullage.trace.model import Int64Array

_LEAST_SLACK = 1e-3
_LOOKS = 4


class Rung(NamedTuple):
    """A plan by the model.

    Attributes:
        time_s: how much longer a step takes than as it is.
        reserved_bytes: what the allocator is expected to hold.
        peak_bytes: the most that is allocated.
        setting: the number of the setting that it is under.
        choice: the number of the choice of treatments.
    """

    time_s: float
    reserved_bytes: int
    peak_bytes: int
    setting: int
    choice: int


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
        slacks = np.array([_slack(one) for one in kinds])
        self._least_slack = float(slacks.min())
        self.rungs = _keep_best(self._climb(slacks))

    def actions(self, rung: Rung) -> Actions:
        """What a rung does: its moves, and each treatment with the modules that get it; what is
        done twice, once for all modules.
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
        return tuple(self._in_order(one) for one in found.values())

    def bound_s(self, rung: Rung) -> float:
        """No mixture for which the allocator is expected to hold as little as for a rung takes a
        step of less.

        The setting with the lowest bound is looked at again, exactly, where HiGHS is there.
        """
        bounds = {}
        for number, setting in enumerate(self._settings):
            if setting.extra_s < rung.time_s:
                found = relax(_under(self._problem, setting), self._limit(setting, rung))
                bounds[number] = setting.extra_s + (0.0 if found is None else found.bound_s)
        for _ in range(_LOOKS):
            lowest = min(bounds, key=bounds.__getitem__, default=None)
            if lowest is None or bounds[lowest] >= rung.time_s * (1 - GAP):
                break
            setting = self._settings[lowest]
            proved = solve(_under(self._problem, setting), self._limit(setting, rung))
            if proved is None:
                bounds.pop(lowest)  # nothing under it has a peak as low
            elif setting.extra_s + proved.bound_s > bounds[lowest]:
                bounds[lowest] = setting.extra_s + proved.bound_s
            else:
                break
        return self.step_s + min([rung.time_s, *bounds.values()])

    def _limit(self, setting: _Setting, rung: Rung) -> int:
        """The most that may be allocated under a setting for as much reserved as a rung has."""
        return int(rung.reserved_bytes / (1.0 + self._least_slack * setting.slack))

    def _climb(self, slacks: FloatArray) -> Iterator[Rung]:
        """Each choice under each setting."""
        problem = self._problem
        levels = np.stack([problem.levels(one) for one in self._choices])
        times = np.array([problem.time_s(one) for one in self._choices])
        slack = np.array([slacks[one].mean() if len(one) else slacks[0] for one in self._choices])
        for number, setting in enumerate(self._settings):
            peaks = (levels + setting.more_bytes).max(axis=1)
            reserved = peaks * (1.0 + slack * setting.slack)
            for choice, (time_s, held, peak) in enumerate(
                zip((times + setting.extra_s).tolist(), reserved, peaks, strict=True)
            ):
                yield Rung(time_s, int(held), int(peak), number, choice)

    def _in_order(self, action: Action) -> Action:
        """Its modules in the order of the program."""
        named = set(action.modules)
        return replace(
            action, modules=tuple(one.path for one in self._known.blocks if one.path in named)
        )


def _keep_best(rungs: Iterator[Rung]) -> list[Rung]:
    """Those that no other beats."""
    best: list[Rung] = []
    for rung in sorted(rungs):
        if not best or rung.reserved_bytes < best[-1].reserved_bytes:
            best.append(rung)
    return best


def _settings(moves: Sequence[Measured], base: Measured) -> Iterator[_Setting]:
    by_key = {key_of(one.actions): one for one in moves}
    for actions in settings([one.actions[0] for one in moves]):
        measured = [by_key[key_of((action,))] for action in actions]
        more = np.zeros(len(base.profile.rest_bytes), dtype=np.int64)
        for one in measured:
            more += _more(one, base)
        factors = [_slack(one) / max(_slack(base), _LEAST_SLACK) for one in measured]
        extra_s = sum(one.seconds.step - base.seconds.step for one in measured)
        yield _Setting(actions, more, extra_s, float(np.prod(factors)))


def _under(problem: Problem, setting: _Setting) -> Problem:
    return replace(problem, rest_bytes=problem.rest_bytes + setting.more_bytes[:, None])


def _slack(one: Measured) -> float:
    """How much more the allocator held at most than it gave out, as a share of that."""
    totals = one.device.totals
    return totals.peak_reserved_bytes / max(totals.peak_allocated_bytes, 1) - 1.0


def _more(one: Measured, base: Measured) -> Int64Array:
    """What a move takes more in each stretch than the program as it is."""
    more = [
        one.profile.rest_bytes.get(stretch, rest) - rest
        for stretch, rest in base.profile.rest_bytes.items()
    ]
    return np.array(more, dtype=np.int64)
