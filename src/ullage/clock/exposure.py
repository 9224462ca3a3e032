"""Which work a step is made of where several streams are busy at once.

A moment belongs to the piece of work with the lowest rank among those that run (computation before
copies before communication), and of equal ranks to the one that began first. So the exposed seconds
of all pieces and the idle seconds add up to the step.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Busy", "Exposure", "measure_exposure"]


class Busy(NamedTuple):
    """A piece of work: from when to when, which row of the log, and its rank."""

    start_s: float
    end_s: float
    row: int
    rank: int


@dataclass(frozen=True, slots=True)
class Exposure:
    """A step divided among its pieces of work.

    Attributes:
        busy_s: by row of the log, the seconds that the piece runs.
        exposed_s: by row, the seconds that belong to it.
        idle_s: the seconds in which nothing runs.
    """

    busy_s: Mapping[int, float]
    exposed_s: Mapping[int, float]
    idle_s: float

    def busy_by(self, names: Mapping[int, str]) -> Mapping[str, float]:
        """The seconds that pieces of each name run."""
        return _sums(self.busy_s, names)

    def exposed_by(self, names: Mapping[int, str]) -> Mapping[str, float]:
        """The seconds that belong to pieces of each name."""
        return _sums(self.exposed_s, names)


def measure_exposure(pieces: Sequence[Busy], begin_s: float, end_s: float) -> Exposure:
    """Divides the seconds from `begin_s` to `end_s`. What a stream does before the begin, as it was
    given work ahead, is busy and takes nothing of the step."""
    ordered = sorted(pieces)
    exposed: defaultdict[int, float] = defaultdict(float)
    open_pieces: list[tuple[int, float, int, float]] = []  # rank, start, index, end
    now, busy_s, place = begin_s, 0.0, 0
    while place < len(ordered) or open_pieces:
        while open_pieces and open_pieces[0][3] <= now:
            heapq.heappop(open_pieces)
        if not open_pieces:
            if place == len(ordered):
                break
            now = max(now, ordered[place].start_s)
        while place < len(ordered) and ordered[place].start_s <= now:
            piece = ordered[place]
            heapq.heappush(open_pieces, (piece.rank, piece.start_s, piece.row, piece.end_s))
            place += 1
        while open_pieces and open_pieces[0][3] <= now:
            heapq.heappop(open_pieces)
        if not open_pieces:
            continue
        until = open_pieces[0][3]
        if place < len(ordered):
            until = min(until, ordered[place].start_s)
        exposed[open_pieces[0][2]] += until - now
        busy_s += until - now
        now = until
    busy = {piece.row: piece.end_s - piece.start_s for piece in pieces}
    return Exposure(busy, exposed, max(0.0, end_s - begin_s - busy_s))


def _sums(seconds: Mapping[int, float], names: Mapping[int, str]) -> Mapping[str, float]:
    sums: Counter[str] = Counter()
    for index, value in seconds.items():
        sums[names[index]] += value  # type: ignore[assignment]
    return sums
