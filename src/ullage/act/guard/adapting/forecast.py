"""How much memory a step will need, from the sizes of its batch and the steps before it.

The need of a step is what its peak is above what was allocated before it. It is taken to be
`a + b_1 x_1 + b_2 x_2 + ...` with `a` and every `b` at least 0, where the x are the sizes of
the batch: elements, and for attention that writes its scores the square of a row's elements. So it
is monotone: a batch that is nowhere larger needs no more. Forecasts are upper ends:

    forecast = Forecast()
    forecast.add((8192.0, 8388608.0), 3 << 30)
    forecast.upper((16384.0, 33554432.0))      # at most 4 times as much

This is a model of one program on one rung, and no guarantee: `Forecast` says by what it goes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Sizes = tuple[float, ...]

_MIN_POINTS = 3
# Up to this multiple of the largest size (of a square: three times the length) lines are used;
# further out only the proportional bound.
_REACH = 9.0
# A line whose points are all within this share of the largest need is held possible.
_TOLERANCE = 0.01
# Of the forecast, and of the part of it beyond the largest batch.
_MARGIN, _MARGIN_BEYOND = 0.01, 0.1
# Batches that need this little more than the least show the floor (the optimizer's step), no slope.
_FLOOR = 1.02
_MAX_POINTS = 64


@dataclass(frozen=True, slots=True)
class Need:
    """The bytes that a step needs above what is allocated before it.

    Attributes:
        num_bytes: at most so many, as far as the model holds.
        basis: "measured": a batch that was at least as large needed no more; "fitted": by the
            steepest line that the batches so far allow; "proportional": there are too few, or it
            is far from all of them, and so is taken to need as much more as its largest size is
            larger.
        num_sizes: the different batches that it rests on.
    """

    num_bytes: int
    basis: str
    num_sizes: int


class Forecast:
    """The needs of the steps so far on one rung, by the sizes of their batches."""

    def __init__(self) -> None:
        self._points: dict[Sizes, int] = {}
        self._provisional: Sizes | None = None
        self._failures: dict[Sizes, int] = {}
        self._lines: tuple[_Line, ...] | None = ()
        self._table: Any = None  # the sizes of the points, one in a row
        self._needs: Any = None
        self._uppers: dict[Sizes, Need | None] = {}  # until something is added

    @property
    def num_sizes(self) -> int:
        """The number of different batches that were measured."""
        return len(self._points)

    @property
    def has_lines(self) -> bool:
        """True if there are enough batches for a line."""
        return bool(self._lines_now())

    def add(self, sizes: Sizes, need_bytes: int, *, is_provisional: bool = False) -> None:
        """Adds a step.

        Args:
            sizes: of its batch.
            need_bytes: its peak less what was allocated before it.
            is_provisional: whether it is forgotten as soon as there is another one, such as the
                step that makes the optimizer's states.
        """
        if self._provisional is None and self._points.get(sizes) == need_bytes:
            return
        if self._provisional is not None:
            self._points.pop(self._provisional, None)
        self._provisional = sizes if is_provisional else None
        self._points[sizes] = need_bytes
        # A batch that fits after all, as when another process has left the device.
        self._failures = {
            failed: least
            for failed, least in self._failures.items()
            if not (_is_within(failed, sizes) and need_bytes <= least)
        }
        if len(self._points) > _MAX_POINTS:
            self._points.pop(self._most_crowded())
        self._lines = None
        self._uppers.clear()
        self._table = np.array([*self._points])
        self._needs = np.array([*self._points.values()])

    def add_failure(self, sizes: Sizes, least_bytes: int) -> None:
        """Adds a step that has failed with this much memory: it needs more."""
        self._failures[sizes] = max(least_bytes, self._failures.get(sizes, 0))
        self._uppers.clear()

    def has_done(self, sizes: Sizes) -> bool:
        """True if a batch of at least these sizes was measured."""
        return sizes in self._points or any(_is_within(sizes, point) for point in self._points)

    def is_below_failures(self, sizes: Sizes, share: float) -> bool:
        """True if a batch is below this share of every one that has failed, in every size."""
        return all(
            _is_within(sizes, tuple(share * size for size in failed)) for failed in self._failures
        )

    def upper(self, sizes: Sizes) -> Need | None:
        """The need of a batch; None where nothing is known, as before the first step."""
        if not self._points:
            return None
        if sizes not in self._uppers:
            if len(self._uppers) >= _MAX_POINTS:
                self._uppers.clear()
            self._uppers[sizes] = self._compute_upper(sizes)
        return self._uppers[sizes]

    def _compute_upper(self, sizes: Sizes) -> Need | None:
        point = np.array(sizes)
        smaller = self._needs[(self._table <= point).all(axis=1)]
        larger = self._needs[(self._table >= point).all(axis=1)]
        choices = [(float((self._needs * _growths(point, self._table)).min()), "proportional")]
        fitted = self._fitted(sizes)
        if fitted is not None:
            choices.append((max(fitted, float(smaller.max(initial=0))), "fitted"))
        if larger.size:
            choices.append((float(larger.min()), "measured"))
        num_bytes, basis = min(choices)
        failed = [need for failed, need in self._failures.items() if _is_within(failed, sizes)]
        num_bytes = max([num_bytes, *(need + 1 for need in failed)])
        if math.isinf(num_bytes):  # it has a size that was 0 in every batch so far
            return None
        return Need(math.ceil(num_bytes), basis, len(self._points))

    def _fitted(self, sizes: Sizes) -> float | None:
        """The upper end of the lines, or None where there is none, or the batch is too far off."""
        lines = self._lines_now()
        if not lines or _growths(np.array(sizes), np.array([lines[0].largest]))[0] > _REACH:
            return None
        return max(line.upper(sizes) for line in lines)

    def _lines_now(self) -> tuple[_Line, ...]:
        if self._lines is None:
            self._lines = _fit(self._points)
        return self._lines

    def _most_crowded(self) -> Sizes:
        """The point that the others replace best: the gap between its neighbours is smallest."""
        points = sorted(self._points)
        gaps = [
            (after[0] / max(before[0], 1.0), middle)
            for before, middle, after in zip(points, points[1:], points[2:], strict=False)
        ]
        return min(gaps)[1]


@dataclass(frozen=True, slots=True)
class _Line:
    """A fitted line.

    Attributes:
        constant: in bytes.
        slopes: in bytes for each unit of each size; none below 0.
        floor_bytes: the least need so far.
        margin_bytes: by how much a point lay above it at most.
        largest: the largest of each size.
    """

    constant: float
    slopes: Sizes
    floor_bytes: int
    margin_bytes: float
    largest: Sizes

    def upper(self, sizes: Sizes) -> float:
        """Its value with all margins."""
        value = self._value(sizes)
        inner = self._value([min(*pair) for pair in zip(sizes, self.largest, strict=True)])
        margin = self.margin_bytes + _MARGIN * value + _MARGIN_BEYOND * (value - inner)
        return max(value, self.floor_bytes) + margin

    def _value(self, sizes: Sequence[float]) -> float:
        return self.constant + sum(a * b for a, b in zip(self.slopes, sizes, strict=True))


def _fit(points: dict[Sizes, int]) -> tuple[_Line, ...]:
    """The lines that the points allow: with elements alone, with squares alone, and with both. A
    few batches of nearly one size allow all three, and then the steepest counts.
    """
    floor_bytes = min(points.values())
    above = {sizes: need for sizes, need in points.items() if need > _FLOOR * floor_bytes}
    if len(above) < _MIN_POINTS:
        return ()
    needs = np.array([*above.values()], dtype=float)
    table = np.array([*above], dtype=float)
    largest = np.array([*points]).max(axis=0)
    scale = np.where(largest > 0, largest, 1.0)
    columns = np.column_stack([np.ones(len(above)), table / scale])
    is_square = np.arange(table.shape[1]) % 2 == 1
    lines, errors = [], []
    for is_used in (~is_square, is_square, np.ones_like(is_square)):
        coefficients = _nonnegative(columns * np.append(1.0, is_used), needs)
        deviations = needs - columns @ coefficients
        slopes = tuple((coefficients[1:] / scale).tolist())
        margin = float(deviations.max(initial=0.0))
        lines.append(
            _Line(float(coefficients[0]), slopes, floor_bytes, margin, tuple(largest.tolist()))
        )
        errors.append(float(np.abs(deviations).max()))
    most = max(_TOLERANCE * needs.max(), 1.5 * min(errors))
    return tuple(line for line, error in zip(lines, errors, strict=True) if error <= most)


def _nonnegative(columns: Any, values: Any) -> Any:
    """Least squares with coefficients of at least 0: the active set method of Lawson and Hanson
    (Solving Least Squares Problems, 1974, chapter 23).
    """
    num = columns.shape[1]
    result = np.zeros(num)
    is_free = np.zeros(num, dtype=bool)
    tolerance = 1e-9 * float(np.abs(columns.T @ values).max(initial=1.0))
    for _ in range(3 * num):
        gradient = columns.T @ (values - columns @ result)
        candidates = np.where(is_free, -np.inf, gradient)
        if candidates.max() <= tolerance:
            break
        is_free[candidates.argmax()] = True
        while True:
            trial = np.zeros(num)
            trial[is_free] = np.linalg.lstsq(columns[:, is_free], values, rcond=None)[0]
            negative = is_free & (trial <= 0)
            if not negative.any():
                break
            share = np.min(result[negative] / (result[negative] - trial[negative] + 1e-300))
            result = result + share * (trial - result)
            is_free &= result > 1e-12 * max(float(result.max()), 1e-300)
            result[~is_free] = 0.0
        result = trial
    return result


def _is_within(small: Sizes, large: Sizes) -> bool:
    """True if a batch is nowhere larger than another."""
    return all(a <= b for a, b in zip(small, large, strict=True))


def _growths(sizes: Any, table: Any) -> Any:
    """By how much the largest ratio of sizes to each row is above 1; infinite where one was 0."""
    ratios = np.divide(sizes, table, out=np.full(table.shape, np.inf), where=table > 0)
    return np.where(sizes > table, ratios, 1.0).max(axis=1)
