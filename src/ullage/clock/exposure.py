"""Which work a step is made of where several streams are busy at once.

A moment belongs to the piece of work with the lowest rank among those that run (computation before
copies before communication), and of equal ranks to the one that began first. So the exposed seconds
of all pieces and the idle seconds add up to the step; and so do their errors, where the step is
measured at other costs.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ullage.clock.cost import Category, Cost
from ullage.clock.duration import join_errors

# What costs rest on was measured apart from one another: the rates of computation, the memory's
# bandwidth, the links between GPUs and that to the host, and the host itself. Errors of one source
# are taken to have one direction, those of two are independent. Nothing is known of unknown
# kernels: all of their error is added.
_HOST, _COMPUTATION, _UNKNOWN = "host", "computation", "unknown"
_SOURCES: Final = {
    Category.ATTENTION: _COMPUTATION,
    Category.CONVOLUTIONS: _COMPUTATION,
    Category.MEMORY_BOUND: "bandwidth",
    Category.COMMUNICATION: "links",
    Category.COPIES: "host link",
}
# How far the errors of two shapes of matrix products are alike. Between NVIDIA's tables of like
# GPUs (H100 and H200; B200, GB200 and B300) 0.43 of the variance is common to all shapes
# (tests/unit/clock/test_errors.py).
_ALIKE: Final = 0.5


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


def joined_share(errors: Iterable[tuple[Cost, float]], idle_s: float) -> float:
    """How large the error of a step is where those of two sources are independent, as a share of
    what it is with all errors in one direction.

    Args:
        errors: the seconds that each piece of work adds to the step.
        idle_s: the seconds that idleness adds.
    """
    shapes: defaultdict[str, float] = defaultdict(float)  # of matrix products
    sources = defaultdict(float, {_HOST: idle_s})
    for cost, error_s in errors:
        if cost.category is Category.MATRIX_PRODUCTS:
            shapes[cost.name] += error_s
        else:
            sources[_SOURCES.get(cost.category, _UNKNOWN)] += error_s
    most_s = sum(map(abs, [*shapes.values(), *sources.values()]))
    if not most_s:
        return 1.0
    unknown_s = abs(sources.pop(_UNKNOWN, 0.0))
    sources[_COMPUTATION] = abs(sources[_COMPUTATION]) + join_errors(shapes.values(), _ALIKE)
    return (unknown_s + join_errors(sources.values())) / most_s
