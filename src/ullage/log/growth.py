"""Growth: whether the levels of a program's steps rise, and by how much with each.

A straight line through the levels, by least squares. It counts if a line as steep is not a chance,
and if both halves of the steps and the last of them keep up its pace: memory that rises at the
start and then stays level does not grow, nor does what only goes up and down.

    find_trend([100, 140, 180, 220]).rate       # 40.0
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

MIN_STEPS: Final = 3
"""Fewer have one increase, and a single increase is not a trend."""
LEAST_BYTES: Final = 4096
"""A step; the allocator rounds to 512, and a few of them, such as losses in a list, are not a leak
that anybody meets."""
# Standard errors of a normal variable: chance in one of 30,000.
_MIN_SIGMAS: Final = 4.0
# A part of the steps may have half of the pace, within two standard errors.
_PACE: Final = 0.5
_SIGMAS: Final = 2.0
_MIN_RECENT: Final = 6


class Trend(NamedTuple):
    """A line through levels: by how much it rises with each step, the standard error of that, and
    its height at the last step.
    """

    rate: float
    error: float
    last: float


def find_trend(levels: Sequence[float], steps: Sequence[float] | None = None) -> Trend | None:
    """The growth of levels; None where they do not grow, or are fewer than three.

    The first of four or more is left out: the first step sets up what stays.

    Args:
        levels: after or in each step, oldest first.
        steps: the numbers of the steps; None: each is the one before and 1.
    """
    points = list(zip(range(len(levels)) if steps is None else steps, levels, strict=True))
    points = points[len(points) > MIN_STEPS :]
    if len(points) < MIN_STEPS:
        return None
    whole, middle = _fit(points), len(points) // 2
    recent = max(_MIN_RECENT, len(points) // 4)
    parts = (points[: middle + 1], points[middle:], points[-recent:])
    if not _is_significant(whole, len(points) - 2) or any(
        part.rate + _SIGMAS * part.error < _PACE * whole.rate for part in map(_fit, parts)
    ):
        return None
    return whole


def _is_significant(line: Trend, freedom: int) -> bool:
    """By Student's t, whose few degrees of freedom make three steps grow by the same or not at all.

    Source: D. L. Wallace, Ann. Math. Statist. 30 (1959): the normal variable of the same chance.
    """
    if line.rate <= 0 or not line.error:
        return line.rate > 0
    t = line.rate / line.error
    scale = (8 * freedom + 1) / (8 * freedom + 3)
    return scale * math.sqrt(freedom * math.log1p(t * t / freedom)) >= _MIN_SIGMAS


def _fit(points: Sequence[tuple[float, float]]) -> Trend:
    """The line of least squares; the standard error of two points is none."""
    count = len(points)
    mean_x = math.fsum(x for x, _ in points) / count
    mean_y = math.fsum(y for _, y in points) / count
    spread = math.fsum((x - mean_x) ** 2 for x, _ in points)
    if not spread:
        return Trend(0.0, 0.0, mean_y)
    slope = math.fsum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    rest = math.fsum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in points)
    error = math.sqrt(rest / (count - 2) / spread) if count > 2 else 0.0
    return Trend(slope, error, mean_y + slope * (points[-1][0] - mean_x))
