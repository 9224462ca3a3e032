"""What plans take, as far as is known: what moves and treatments were measured to take by
themselves, added up stretch by stretch, until plans of several were run.

    expectations = Expectations(settings, slacks)
    expectations.learn(number, look)
    peak_bytes, reserved_bytes = expectations.of(number, choices, levels)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ullage.plan.costs.measure import Measured
from ullage.plan.findings import key_of
from ullage.plan.menu import Actions, settings
from ullage.plan.solver.problem import FloatArray
from ullage.trace.model import DeviceTotals, Int64Array

_LEAST_SLACK = 1e-3
# Times are told apart to a nanosecond.
DIGITS = 9


@dataclass(frozen=True, slots=True)
class Setting:
    """Several moves together: what they take more in each stretch, how much longer a step takes,
    and by which factor the slack of the allocator changes.
    """

    actions: Actions
    more_bytes: Int64Array
    extra_s: float
    slack: float


class Look(NamedTuple):
    """A choice that was run under a setting: what the setting took more in each stretch, and how
    much more the allocator held than it gave out, as a share of that.
    """

    choice: Int64Array
    more_bytes: Int64Array
    slack: float


class Case(NamedTuple):
    """What is expected of a part of the choices under a setting: how much longer a step takes than
    by the choice alone, what the setting takes more in each stretch, and the least slack.
    """

    extra_s: float
    more_bytes: Int64Array
    slack: float


class Expectations:
    """What is expected of choices under settings.

    What a setting takes is that of its moves, added up, until choices were run under it: then what
    was seen of the one that is most like it is expected of each other.
    """

    def __init__(self, settings: Sequence[Setting], slacks: FloatArray) -> None:
        """
        Args:
            settings: what treatments may be mixed with.
            slacks: (num_treatments,) of the program as it is and under each treatment.
        """
        self._settings = settings
        self._slacks = slacks
        self._looks: dict[int, list[Look]] = {}

    def learn(self, number: int, look: Look) -> list[int]:
        """Takes in what was seen under a setting. Returns the numbers of the settings of which
        something else is expected from now on.
        """
        self._looks.setdefault(number, []).append(look)
        return self._alike(number)

    def is_known(self, number: int) -> bool:
        """Whether a choice was run under a setting, or under one that takes as long."""
        return bool(self._looks_at(number))

    def cases(self, number: int) -> list[Case]:
        """By each look that there was at a setting, what it may take of any choice."""
        setting, looks = self._settings[number], self._looks_at(number)
        if not looks:
            slack = float(self._slacks.min()) * setting.slack
            return [Case(setting.extra_s, setting.more_bytes, slack)]
        return [Case(setting.extra_s, look.more_bytes, look.slack) for look in looks]

    def of(
        self, number: int, choices: Int64Array, levels: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        """Of choices under a setting, (C, N), with these levels, (C, W): the most that is
        allocated, (C,), and what the allocator holds, (C,).
        """
        setting, looks = self._settings[number], self._looks_at(number)
        if looks:
            # Of two that are as like, that with the lower slack: what it is too low for is run.
            looks = sorted(looks, key=lambda look: look.slack)
            nearest = np.stack([self._unlike(choices, look.choice) for look in looks]).argmin(
                axis=0
            )
            more = np.stack([look.more_bytes for look in looks])[nearest]
            slack = np.array([look.slack for look in looks])[nearest]
        else:
            more = setting.more_bytes
            slack = setting.slack * np.array([self._slack_of(choice) for choice in choices])
        peaks = (levels + more).max(axis=1)
        return peaks, (peaks * (1.0 + slack)).astype(np.int64)

    def _alike(self, number: int) -> list[int]:
        """Settings that take as long as one, and that one: such as are the same but for what makes
        the allocator hold less.
        """
        taken_s = round(self._settings[number].extra_s, DIGITS)
        return [
            n
            for n, setting in enumerate(self._settings)
            if round(setting.extra_s, DIGITS) == taken_s
        ]

    def _looks_at(self, number: int) -> list[Look]:
        """What was seen under a setting; else, under one that takes as long, what is to be expected
        of this one by it.
        """
        if number in self._looks:
            return self._looks[number]
        alike = self._alike(number)
        place = next((look for look in self._looks if look in alike), None)
        if place is None:
            return []
        own, other = self._settings[number], self._settings[place]
        more = own.more_bytes - other.more_bytes
        factor = own.slack / max(other.slack, _LEAST_SLACK)
        return [
            Look(look.choice, look.more_bytes + more, look.slack * factor)
            for look in self._looks[place]
        ]

    def _unlike(self, choices: Int64Array, other: Int64Array) -> Int64Array:
        """How unlike choices, (C, N), are to one that was seen: by how many blocks get each
        treatment, and then by which; else each place of the same few would be tried in turn.
        """
        kinds = range(len(self._slacks))
        counts = [(choices == kind).sum(axis=1) - (other == kind).sum() for kind in kinds]
        int64_array: Int64Array = np.abs(counts).sum(axis=0) * len(other) + (choices != other).sum(
            axis=1
        )
        return int64_array

    def _slack_of(self, choice: Int64Array) -> float:
        return float(self._slacks[choice].mean() if len(choice) else self._slacks[0])


def make_settings(moves: Sequence[Measured], base: Measured) -> Iterator[Setting]:
    """All moves that go together, by what each of them was measured to take."""
    by_key = {key_of(move.actions): move for move in moves}
    for actions in settings([move.actions[0] for move in moves]):
        measured = [by_key[key_of((action,))] for action in actions]
        more = np.zeros(len(base.profile.rest_bytes), dtype=np.int64)
        for measurement in measured:
            more += _more(measurement, base)
        least = max(slack_of(base.device.totals), _LEAST_SLACK)
        factors = [slack_of(move.device.totals) / least for move in measured]
        extra_s = sum(move.seconds.step - base.seconds.step for move in measured)
        yield Setting(actions, more, extra_s, float(np.prod(factors)))


def slack_of(totals: DeviceTotals) -> float:
    """How much more the allocator held at most than it gave out, as a share of that."""
    return totals.peak_reserved_bytes / max(totals.peak_allocated_bytes, 1) - 1.0


def _more(measured: Measured, base: Measured) -> Int64Array:
    """What a move takes more in each stretch than the program as it is."""
    more = [
        measured.profile.rest_bytes.get(stretch, rest) - rest
        for stretch, rest in base.profile.rest_bytes.items()
    ]
    return np.array(more, dtype=np.int64)
