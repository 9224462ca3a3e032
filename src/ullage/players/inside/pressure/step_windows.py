"""Steps in windows: their peaks, what the allocator had to do, and how long they took.

However many steps there are, they share at most 64 windows: where these are full, two neighbours
become one. The times of a window are counted in bins, so nothing of their spread is lost.
"""

from __future__ import annotations

import operator
from collections import Counter, deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from ullage.log.durations import bin_of
from ullage.players.inside.steps.step_rows import StepRows

if TYPE_CHECKING:
    from ullage.log.record_schema import Rows

MAX_WINDOWS = 64
NUM_RECENT = 1000
"""The last steps, or requests, whose times are counted by themselves too."""


class Level(NamedTuple):
    """The level that a step reached, by the process's fullest device, and its cost on all devices.

    inactive_split_bytes: free pieces within segments in use when the step ended.
    """

    allocated_bytes: int
    reserved_bytes: int
    inactive_split_bytes: int
    num_alloc_retries: int
    num_device_frees: int


class TimeCounts:
    """The number of durations in each bin: of all, and of the last ones."""

    def __init__(self) -> None:
        self.all: Counter[int] = Counter()
        self._recent: deque[int] = deque(maxlen=NUM_RECENT)

    def add(self, seconds: float) -> int:
        """One more; returns its bin."""
        number = bin_of(seconds)
        self.all[number] += 1
        self._recent.append(number)
        return number

    def rows(self, *others: Mapping[int, int]) -> Rows:
        """[bin, all, last ones, each of others]."""
        recent = Counter(self._recent)
        return [
            [number, count, recent[number], *(other.get(number, 0) for other in others)]
            for number, count in sorted(self.all.items())
        ]


class StepWindows:
    """Collects steps. `max_windows` is even."""

    def __init__(self, max_windows: int = MAX_WINDOWS) -> None:
        add = operator.add
        self._rows = StepRows((min, add, max, max, max, add, add), max_windows)
        self._bins: list[Counter[int]] = []  # of each window, how many steps each bin has
        self._times = TimeCounts()
        self._with_retry: Counter[int] = Counter()
        self._with_device_free: Counter[int] = Counter()

    @property
    def num_steps(self) -> int:
        """The number of steps."""
        return self._rows.num_steps

    def add(self, began_s: float, seconds: float, level: Level) -> None:
        """One more step has ended.

        began_s: from the beginning of the recording on.
        """
        before = self._rows.per_row
        self._rows.add(began_s, seconds, *level)
        if self._rows.per_row > before:
            pairs = zip(self._bins[::2], self._bins[1::2], strict=True)
            self._bins = [window + following for window, following in pairs]
        if (self.num_steps - 1) % self._rows.per_row == 0:
            self._bins.append(Counter())
        number = self._times.add(seconds)
        self._bins[-1][number] += 1
        if level.num_alloc_retries:
            self._with_retry[number] += 1
        if level.num_device_frees:
            self._with_device_free[number] += 1

    def time_rows(self) -> Rows:
        """[bin, steps, of the last ones, with a retry, with a cudaFree]."""
        return self._times.rows(self._with_retry, self._with_device_free)

    def window_rows(self) -> Rows:
        """The windows, oldest first; the columns are those of the schema."""
        return [[*row[:4], *map(int, row[4:])] for row in self._rows.rows()]

    def window_time_rows(self) -> Rows:
        """[number of the window, bin, steps]."""
        return [
            [place, number, count]
            for place, window in enumerate(self._bins)
            for number, count in sorted(window.items())
        ]
