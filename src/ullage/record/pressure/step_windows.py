"""Steps in windows: their peaks, what the allocator had to do, and how long they took.

However many steps there are, they share at most 64 windows: where these are full, two neighbours
become one. The times of a window are counted in bins, so nothing of their spread is lost.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from ullage.trace.durations import bin_of

if TYPE_CHECKING:
    from ullage.trace.record_schema import Rows

MAX_WINDOWS = 64
NUM_RECENT = 1000
"""The last steps, or requests, whose times are counted by themselves too."""


class Level(NamedTuple):
    """What a step reached, by the process's fullest device, and what it cost on all devices.

    inactive_split_bytes: free pieces within segments in use when the step ended.
    """

    allocated_bytes: int
    reserved_bytes: int
    inactive_split_bytes: int
    num_alloc_retries: int
    num_device_frees: int


_NOTHING = Level(0, 0, 0, 0, 0)


class _Window:
    def __init__(self, first: int, began_s: float) -> None:
        self.first = first
        self.began_s = began_s
        self.num_steps = 0
        self.seconds = 0.0
        self.level = _NOTHING
        self.times: Counter[int] = Counter()

    def count(self, number: int, seconds: float, level: Level) -> None:
        """One more step, whose time is in the bin of that number."""
        self.num_steps += 1
        self.times[number] += 1
        self._reach(seconds, level)

    def take_in(self, other: _Window) -> None:
        """The window that follows becomes part of this one."""
        self.num_steps += other.num_steps
        self.times.update(other.times)
        self._reach(other.seconds, other.level)

    def _reach(self, seconds: float, level: Level) -> None:
        own = self.level
        self.seconds += seconds
        self.level = Level(
            max(own.allocated_bytes, level.allocated_bytes),
            max(own.reserved_bytes, level.reserved_bytes),
            max(own.inactive_split_bytes, level.inactive_split_bytes),
            own.num_alloc_retries + level.num_alloc_retries,
            own.num_device_frees + level.num_device_frees,
        )


class TimeCounts:
    """How many durations each bin has: of all, and of the last ones."""

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
        self._max_windows = max_windows
        self._windows: list[_Window] = []
        self._per_window = 1
        self._times = TimeCounts()
        self._with_retry: Counter[int] = Counter()
        self._with_device_free: Counter[int] = Counter()
        self.num_steps = 0

    def add(self, began_s: float, seconds: float, level: Level) -> None:
        """One more step has ended.

        began_s: from the beginning of the recording on.
        """
        if self.num_steps % self._per_window == 0:
            if len(self._windows) == self._max_windows:
                self._merge()
            self._windows.append(_Window(self.num_steps, began_s))
        number = self._times.add(seconds)
        self._windows[-1].count(number, seconds, level)
        if level.num_alloc_retries:
            self._with_retry[number] += 1
        if level.num_device_frees:
            self._with_device_free[number] += 1
        self.num_steps += 1

    def time_rows(self) -> Rows:
        """[bin, steps, of the last ones, with a retry, with a cudaFree]."""
        return self._times.rows(self._with_retry, self._with_device_free)

    def window_rows(self) -> Rows:
        """The windows, oldest first; the columns are those of the schema."""
        return [
            [window.first, window.num_steps, window.began_s, window.seconds, *window.level]
            for window in self._windows
        ]

    def window_time_rows(self) -> Rows:
        """[number of the window, bin, steps]."""
        return [
            [place, number, count]
            for place, window in enumerate(self._windows)
            for number, count in sorted(window.times.items())
        ]

    def _merge(self) -> None:
        """Makes one window of each two."""
        for window, following in zip(self._windows[::2], self._windows[1::2], strict=True):
            window.take_in(following)
        del self._windows[1::2]
        self._per_window *= 2
