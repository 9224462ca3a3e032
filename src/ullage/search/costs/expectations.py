"""The expected time and memory of plans: the sums of what moves and treatments take by themselves,
stretch by stretch, until runs of whole plans are known.

    expectations = Expectations(settings, slacks)
    expectations.learn(number, look)
    peak_bytes, reserved_bytes = expectations.of(number, choices, levels)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ullage.log.model import DeviceTotals, Int64Array
from ullage.search.costs.measure import Measured
from ullage.search.findings import key_of
from ullage.search.menu import Actions, settings
from ullage.search.solver.problem import FloatArray

_LEAST_SLACK = 1e-3
# Times are compared to a nanosecond.
DIGITS = 9


@dataclass(frozen=True, slots=True)
class Setting:
    """Several moves together: their extra memory in each stretch, their extra time for a step, and
    their factor for the slack of the allocator.
    """

    actions: Actions
    more_bytes: Int64Array
    extra_s: float
    slack: float


class Look(NamedTuple):
    """The run of a choice under a setting: the extra memory of the setting in each stretch, and the
    slack: reserved memory beyond the allocated, as a share of the allocated.
    """

    choice: Int64Array
    more_bytes: Int64Array
    slack: float


class Case(NamedTuple):
    """The model's expectation of some choices under a setting: the extra time of a step, the extra
    memory in each stretch, and the least slack.
    """

    extra_s: float
    more_bytes: Int64Array
    slack: float


class Expectations:
    """The expected memory of choices under settings.

    A setting takes the sum of its moves, until choices ran under it. From then on, each choice is
    expected to take what the most similar of these took.
    """

    def __init__(self, settings: Sequence[Setting], slacks: FloatArray) -> None:
        """
        Args:
            settings: those that treatments may be combined with.
            slacks: (num_treatments,) of the unchanged program and under each treatment.
        """
        self._settings = settings
        self._slacks = slacks
        self._looks: dict[int, list[Look]] = {}

    def learn(self, number: int, look: Look) -> list[int]:
        """Adds a run under a setting. Returns the numbers of the settings whose expectations
        change.
        """
        self._looks.setdefault(number, []).append(look)
        return self._alike(number)

    def is_known(self, number: int) -> bool:
        """True if a choice ran under a setting, or under one with the same time."""
        return bool(self._looks_at(number))

    def cases(self, number: int) -> list[Case]:
        """The cases of a setting, by each run under it."""
        setting, looks = self._settings[number], self._looks_at(number)
        if not looks:
            slack = float(self._slacks.min()) * setting.slack
            return [Case(setting.extra_s, setting.more_bytes, slack)]
        return [Case(setting.extra_s, look.more_bytes, look.slack) for look in looks]

    def of(
        self, number: int, choices: Int64Array, levels: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        """The peaks of allocated, (C,), and of reserved memory, (C,), of choices under a setting.

        Args:
            choices: (C, N).
            levels: (C, W).
        """
        setting, looks = self._settings[number], self._looks_at(number)
        if looks:
            # Of two equally similar runs, the one with less slack: what it lets through is run.
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
        """The settings with the same time as one, and that one: they differ only in what makes the
        allocator reserve less.
        """
        taken_s = round(self._settings[number].extra_s, DIGITS)
        return [
            n
            for n, setting in enumerate(self._settings)
            if round(setting.extra_s, DIGITS) == taken_s
        ]

    def _looks_at(self, number: int) -> list[Look]:
        """The runs under a setting; or those under a setting with the same time, corrected for the
        difference of the two.
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
        """How different choices, (C, N), are from one that ran: by how many blocks get each
        treatment first, and then by which. Else the same few treatments would be tried on every
        possible place.
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
    """All sets of compatible moves, with the sums of their measurements."""
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
    """The peak of reserved memory beyond that of the allocated, as a share of the allocated."""
    return totals.peak_reserved_bytes / max(totals.peak_allocated_bytes, 1) - 1.0


def _more(measured: Measured, base: Measured) -> Int64Array:
    """The extra memory of a move in each stretch."""
    more = [
        measured.profile.rest_bytes.get(stretch, rest) - rest
        for stretch, rest in base.profile.rest_bytes.items()
    ]
    return np.array(more, dtype=np.int64)
