"""The peak of each step, of any number of steps in bounded memory.

Where there are more steps than rows, two neighbours become one row with the higher peaks: nothing
that was reached is lost, only in which of a few steps it was.
"""

from __future__ import annotations

import array
from typing import NamedTuple

MAX_ROWS = 1 << 14


class StepRow(NamedTuple):
    """Some steps in a row: the first, how many, their highest bytes, and their seconds together."""

    first: int
    num_steps: int
    allocated_bytes: int
    reserved_bytes: int
    seconds: float


class StepPeaks:
    """Collects rows. `max_rows` is even."""

    def __init__(self, max_rows: int = MAX_ROWS) -> None:
        self._max_rows = max_rows
        self._numbers = array.array("q")  # first, steps, allocated, reserved
        self._seconds = array.array("d")
        self._per_row = 1
        self.num_steps = 0

    def add(self, allocated_bytes: int, reserved_bytes: int, seconds: float) -> None:
        """One more step has ended."""
        if self.num_steps % self._per_row == 0:
            if len(self._seconds) == self._max_rows:
                self._merge()
            self._numbers.extend((self.num_steps, 0, 0, 0))
            self._seconds.append(0.0)
        numbers = self._numbers
        numbers[-3] += 1
        numbers[-2] = max(numbers[-2], allocated_bytes)
        numbers[-1] = max(numbers[-1], reserved_bytes)
        self._seconds[-1] += seconds
        self.num_steps += 1

    def rows(self) -> list[StepRow]:
        """All rows, oldest first."""
        numbers = iter(self._numbers)
        batched = zip(numbers, numbers, numbers, numbers, strict=True)
        return [StepRow(*row, seconds) for row, seconds in zip(batched, self._seconds, strict=True)]

    def _merge(self) -> None:
        """Makes one row of each two."""
        rows = self.rows()
        self._per_row *= 2
        self._numbers, self._seconds = array.array("q"), array.array("d")
        for one_row, other in zip(rows[::2], rows[1::2], strict=True):
            allocated = max(one_row.allocated_bytes, other.allocated_bytes)
            reserved = max(one_row.reserved_bytes, other.reserved_bytes)
            count = one_row.num_steps + other.num_steps
            self._numbers.extend((one_row.first, count, allocated, reserved))
            self._seconds.append(one_row.seconds + other.seconds)
