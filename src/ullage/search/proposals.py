"""Which rungs of a ladder to run next, until the search has the fastest that fits.

while rungs := next_rungs(ladder.rungs, tried, room_bytes, 2):
    tried[rungs[0].place] = ...         # and the ladder learns from the run
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

# How many of the last rungs are tried where the model expects none to fit: real memory does not
# always fall in the order of the model.
_BEYOND = 2


class Rung(NamedTuple):
    """A plan by the model.

    Attributes:
        time_s: how much longer a step takes than in the unchanged program.
        reserved_bytes: the expected peak of reserved memory.
        peak_bytes: the expected peak of allocated memory.
        setting: the number of its setting.
        choice: the number of the choice of treatments.
    """

    time_s: float
    reserved_bytes: int
    peak_bytes: int
    setting: int
    choice: int

    @property
    def place(self) -> tuple[int, int]:
        """Its setting and choice: the identity of the rung."""
        return self.setting, self.choice


def next_rungs(
    rungs: Sequence[Rung], tried: Mapping[tuple[int, int], bool], room_bytes: int, width: int
) -> list[Rung]:
    """Up to `width` rungs to run together; none: the model expects no faster one to fit.

    Args:
        rungs: fastest first.
        tried: for each rung that ran, by its place, whether it fits.
        room_bytes: the most that the allocator may reserve.
        width: the number of runs at once.
    """
    fitting = [number for number, rung in enumerate(rungs) if tried.get(rung.place)]
    ahead = range(fitting[0] if fitting else len(rungs))
    new = [number for number in ahead if rungs[number].place not in tried]
    expected = [number for number in new if rungs[number].reserved_bytes <= room_bytes]
    if expected:
        first = expected[0]
        numbers = [
            first,
            *(number for number in (first - 1, first - 2, *expected[1:]) if number in new),
        ]
    else:
        nearest = list(reversed(ahead))[:_BEYOND]
        numbers = [number for number in nearest if number in new]
    return [rungs[number] for number in numbers[:width]]


def contenders(
    rungs: Sequence[Rung], tried: Collection[tuple[int, int]], room_bytes: int, limit_s: float
) -> list[Rung]:
    """Rungs under settings of which none ran yet, the fastest of each, that are expected to fit and
    to take less than the clock says of the best: where the clock says more of several techniques
    together than of each, others may be faster.

    Args:
        rungs: fastest first.
        tried: the places of those that ran.
        room_bytes: the most that the allocator may reserve.
        limit_s: how much longer the best takes than the unchanged program, by the clock.
    """
    known = {setting for setting, _ in tried}
    fastest: dict[int, Rung] = {}
    for rung in rungs:
        may_be_best = rung.reserved_bytes <= room_bytes and rung.time_s < limit_s
        if may_be_best and rung.setting not in known:
            fastest.setdefault(rung.setting, rung)
    return [*fastest.values()]
