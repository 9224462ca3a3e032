"""Figures of each step, of any number of steps in bounded memory.

Where there are more steps than rows, two neighbours become one row: nothing that was reached is
lost, only in which of a few steps it was.
"""

from __future__ import annotations

import array
from collections.abc import Callable

MAX_ROWS = 1 << 14


class StepRows:
    """Collects rows.

    Args:
        combine: for each figure, a number below 2^53, what makes one of two, such as `max`.
        max_rows: an even number.

    Attributes:
        per_row: how many steps a row is of, but for the last.
    """

    def __init__(
        self, combine: tuple[Callable[[float, float], float], ...], max_rows: int = MAX_ROWS
    ) -> None:
        self._combine = combine
        self._max_values = max_rows * len(combine)
        self._values = array.array("d")  # the figures of each row
        self.per_row = 1
        self.num_steps = 0

    def add(self, *figures: float) -> None:
        """One more step has ended."""
        values = self._values
        if self.num_steps % self.per_row:
            place = len(values) - len(figures)
            for combine, figure in zip(self._combine, figures, strict=True):
                values[place] = combine(values[place], figure)
                place += 1
        elif len(values) == self._max_values:
            rows = self.rows()
            self.per_row *= 2
            self._values = array.array("d")
            for row, following in zip(rows[::2], rows[1::2], strict=True):
                pairs = zip(self._combine, row[2:], following[2:], strict=True)
                self._values.extend(combine(*pair) for combine, *pair in pairs)
            self._values.extend(figures)
        else:
            values.extend(figures)
        self.num_steps += 1

    def rows(self) -> list[list[float]]:
        """The rows, oldest first: the first step, the number of steps, and the figures of each."""
        figures = [iter(self._values)] * len(self._combine)
        return [
            [first, min(self.per_row, self.num_steps - first), *row]
            for first, row in zip(
                range(0, self.num_steps, self.per_row), zip(*figures, strict=True), strict=True
            )
        ]
