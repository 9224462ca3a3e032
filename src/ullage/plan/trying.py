"""Which rungs of a ladder to run next, until the fastest that fits is found.

while rungs := next_rungs(ladder.rungs, tried, room_bytes, 2):
    tried[rungs[0].place] = ...         # and the ladder learns what was seen
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

# Rungs right before the first that fits which are tried as well, as are the last where none is
# expected to fit: what is seen is not always in the order of what was expected.
_BEYOND = 2


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

    @property
    def place(self) -> tuple[int, int]:
        """What tells it from other rungs, whatever is expected of it."""
        return self.setting, self.choice


def next_rungs(
    rungs: Sequence[Rung], tried: Mapping[tuple[int, int], bool], room_bytes: int, width: int
) -> list[Rung]:
    """Up to `width` rungs to run together; none: nothing is expected to be faster.

    Args:
        rungs: fastest first.
        tried: whether those that were run fit, by their places.
        room_bytes: what the allocator may hold.
        width: how many are run at once.
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
