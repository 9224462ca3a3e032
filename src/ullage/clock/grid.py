"""Interpolation between measured shapes, on a grid with holes.

A grid holds, for each combination of its axes' values, how much longer a measurement took than the
roofline says, as a logarithm to base 2. Interpolation is linear in the logarithms of the axes, so a
rate that is a power of the shape is met exactly. A hole gets the mean of what its neighbours say
along each axis, where near neighbours count more: the error of a line between two points is the
curvature times the distances to both. Where it has neighbours on one side alone, it gets theirs:
the roofline with the efficiency of the edge.

>>> grid = fill([[1, 4]], np.array([0.0, 1.0]))
>>> grid.at([2]).value
0.5
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
# In octaves squared: how much a measurement's own error weighs against its distance.
_NOISE: Final = 0.2


class Reading(NamedTuple):
    """A value of a grid.

    Attributes:
        value: the logarithm.
        outside: how far the point lies outside of the measured shapes, in octaves; a hole at the
            edge counts as one.
    """

    value: float
    outside: float


class Estimate(NamedTuple):
    """The neighbours' estimate along one axis for each hole.

    Attributes:
        values: NaN for what is not a hole, and where there are no neighbours.
        gap: the distance to the one neighbour times that to the other, in octaves squared.
    """

    values: Floats
    gap: Floats


@dataclass(frozen=True, slots=True)
class Grid:
    """A grid without holes.

    Attributes:
        axes: the logarithms to base 2 of each axis' values, ascending.
        values: one for each combination.
        is_edge: the value comes from one side alone.
    """

    axes: tuple[Floats, ...]
    values: Floats
    is_edge: npt.NDArray[np.bool_]

    def at(self, point: Sequence[float]) -> Reading:
        """The value at a point; outside of an axis, the value at its end."""
        outside = 0.0
        places = []
        for axis, number in zip(self.axes, point, strict=True):
            exponent = math.log2(number)
            inside = min(max(exponent, float(axis[0])), float(axis[-1]))
            outside += abs(exponent - inside)
            places.append(_between(axis, inside))
        value, is_edge = 0.0, False
        for corner in itertools.product(*places):
            weight = math.prod(share for _, share in corner)
            if weight > 0:
                index = tuple(place for place, _ in corner)
                value += weight * float(self.values[index])
                is_edge = is_edge or bool(self.is_edge[index])
        return Reading(value, outside + is_edge)


def fill(
    axes: Sequence[Sequence[float]], values: Floats, weights: Sequence[float] | None = None
) -> Grid:
    """Fills the holes of a grid.

    Args:
        axes: the values of each axis, ascending and above 0.
        values: NaN where nothing was measured; at least one is not.
        weights: how much each axis counts in the mean; None: all the same.
    """
    logs = tuple(np.log2(np.asarray(axis, dtype=np.float64)) for axis in axes)
    counts = [1.0] * len(logs) if weights is None else list(weights)
    filled = _fill_until_still(values, logs, counts, one_side=False)
    is_edge = np.isnan(filled)
    return Grid(logs, _fill_until_still(filled, logs, counts, one_side=True), is_edge)


def along_axis(values: Floats, axis: Floats, number: int, *, one_side: bool = False) -> Estimate:
    """Estimates each hole from its neighbours along one axis.

    Args:
        axis: the logarithms of the axis' values.
        number: which axis it is.
        one_side: one neighbour is enough, and has its value.
    """
    lines = np.moveaxis(values, number, -1)
    is_known = ~np.isnan(lines)
    count = lines.shape[-1]
    places = np.arange(count)
    before = np.maximum.accumulate(np.where(is_known, places, -1), axis=-1)
    after = np.flip(
        np.minimum.accumulate(np.flip(np.where(is_known, places, count), -1), axis=-1), -1
    )
    left, right = np.maximum(before, 0), np.minimum(after, count - 1)
    below, above = (np.take_along_axis(lines, place, -1) for place in (left, right))
    span = axis[right] - axis[left]
    share = np.divide(axis - axis[left], span, out=np.zeros_like(span), where=span > 0)
    estimate = below + share * (above - below)
    has_before, has_after = before >= 0, after < count
    if one_side:
        estimate = np.where(has_before & has_after, estimate, np.where(has_before, below, above))
        usable = has_before | has_after
    else:
        usable = has_before & has_after
    gap = np.where(has_before & has_after, (axis - axis[left]) * (axis[right] - axis), 0.0)
    lines = np.where(usable & ~is_known, estimate, np.nan)
    return Estimate(np.moveaxis(lines, -1, number), np.moveaxis(gap, -1, number))


def _fill_until_still(
    values: Floats, axes: Sequence[Floats], weights: Sequence[float], *, one_side: bool
) -> Floats:
    while True:
        total, weight = np.zeros_like(values), np.zeros_like(values)
        for number, (axis, share) in enumerate(zip(axes, weights, strict=True)):
            estimate = along_axis(values, axis, number, one_side=one_side)
            is_there = ~np.isnan(estimate.values)
            shares = share / (_NOISE + estimate.gap[is_there])
            total[is_there] += shares * estimate.values[is_there]
            weight[is_there] += shares
        is_new = weight > 0
        if not is_new.any():
            return values
        values = np.where(is_new, total / np.where(is_new, weight, 1.0), values)


def _between(axis: Floats, exponent: float) -> tuple[tuple[int, float], ...]:
    """The two places of an axis around a point, with their shares."""
    right = int(np.searchsorted(axis, exponent))
    if right < len(axis) and axis[right] == exponent:
        return ((right, 1.0),)
    left = right - 1
    share = (exponent - float(axis[left])) / float(axis[right] - axis[left])
    return (left, 1.0 - share), (right, share)
