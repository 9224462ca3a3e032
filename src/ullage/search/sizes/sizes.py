"""The largest size that fits, found with few runs.

A peak is the highest of several moments, and each grows in a straight line with the size: where the
line through two sizes reaches the budget, the answer is near, and what remains is to see that it
fits and that the next size does not.

    search = Sizes(budget_bytes)
    while sizes := search.next():
        search.note(sizes, ...)
    search.largest, search.beyond
"""

from __future__ import annotations

from collections.abc import Sequence

from ullage.search.findings import Seen

# The first sizes that are tried. 1 is no good beginning: batch statistics need two samples.
FIRST = (2, 16)
# Of two sizes nearer to each other than this, granules of memory say more than the slope does.
_NEAR = 0.75
_STRIDE = 4
_LEAP = 8
# A peak that is the same here as at an eighth of it does not hang on the size.
_FLAT = 2**16
# The line is asked so often; then the rest is halved.
_LINES = 3


def from_line(budget_bytes: int, step: int, low: tuple[int, int], high: tuple[int, int]) -> Sizes:
    """A search that begins where a line reaches the budget.

    Args:
        budget_bytes: of the device.
        step: only multiples of it are tried.
        low, high: two sizes, each with the bytes that are used where memory is without end.
    """
    (small, less_bytes), (large, used_bytes) = low, high
    slope = (used_bytes - less_bytes) // (large - small)
    if slope <= 0:  # what takes the most does not hang on these sizes: larger ones have to tell
        return Sizes(budget_bytes, step=step, first=(large, _LEAP * large))
    reached = min(large + (budget_bytes - used_bytes) // slope, _LEAP * large)
    place = max(reached // step, 1) * step
    fixed_bytes = max(0, used_bytes - slope * large)
    return Sizes(budget_bytes, step=step, fixed_bytes=fixed_bytes, first=(place, place + step))


class Sizes:
    """Which sizes were tried, and which to try next.

    Args:
        budget_bytes: of the device.
        step: only multiples of it are tried.
        fixed_bytes: what is used whatever the size, where that is known about.
        first: the sizes to begin with.

    Attributes:
        seen: what each size that was tried showed.
    """

    def __init__(
        self,
        budget_bytes: int,
        *,
        step: int = 1,
        fixed_bytes: int | None = None,
        first: Sequence[int] = (),
    ) -> None:
        self.seen: dict[int, Seen] = {}
        self._budget_bytes = budget_bytes
        self._step = step
        self._fixed_bytes = fixed_bytes
        self._first = first or [step * size for size in FIRST]
        self._leaps = 0
        self._lines = 0

    @property
    def largest(self) -> int | None:
        """The largest that fits below all that do not; None: none does."""
        beyond = self.beyond
        fitting = [size for size, observation in self.seen.items() if observation.fits]
        return max((size for size in fitting if beyond is None or size < beyond), default=None)

    @property
    def expected(self) -> int:
        """About the largest, before anything was tried."""
        return max(self._first)

    @property
    def around(self) -> tuple[int, int]:
        """The largest and the next, for a search of which the end is about the same."""
        place = max(self.largest or 0, self._step)
        return place, place + self._step

    @property
    def beyond(self) -> int | None:
        """The smallest that does not fit; None: all did."""
        return min(
            (size for size, observation in self.seen.items() if not observation.fits), default=None
        )

    def note(self, sizes: Sequence[int], observations: Sequence[Seen]) -> Sizes:
        """Takes what runs of these sizes have shown; returns itself."""
        self.seen |= dict(zip(sizes, observations, strict=True))
        return self

    def next(self) -> list[int]:
        """Up to two sizes to try together; none: it is found, or none fits, or all do."""
        if not self.seen:
            return [*self._first]
        low, high = self.largest or 0, self.beyond
        if high is not None and high - low <= self._step:
            return []
        if high is None:
            return self._leap(low)
        expected, self._lines = self._line_end(low), self._lines + 1
        if self.largest is None and self._fixed_bytes is not None:
            # Where the first guess was a little too much.
            fromkeys = [self._rounded(high * 3 // 4), self._rounded(high * 7 // 8)]
        elif expected is None or expected <= low or self._lines > _LINES:
            third = (high - low) // 3
            fromkeys = [self._rounded(low + third), self._rounded(high - third)]
        elif expected >= high:  # the line was too flat: one nearer to the end has the right slope
            fromkeys = [self._rounded((low + high) // 2), high - self._step]
        else:
            fromkeys = [expected, expected + self._step]
        fromkeys = [fromkey for fromkey in dict.fromkeys(fromkeys) if low < fromkey < high]
        return fromkeys or [low + self._step]

    def _leap(self, low: int) -> list[int]:
        """Farther, where everything fits; nowhere, where the peak has long not grown."""
        if self._is_flat(low):
            return []
        expected, least = self._line_end(low), low + self._step * _STRIDE**self._leaps
        self._leaps += 1
        place = _LEAP * low if expected is None else max(expected, least)
        return [place, place + self._step]

    def _line_end(self, low: int) -> int | None:
        line = self._line()
        if line is None:
            return None
        return self._rounded(low + int((self._budget_bytes - self.seen[low].used_bytes) / line))

    def _line(self) -> float | None:
        """Bytes for one more, by the largest that fits and one well below it; None: not known."""
        low = self.largest
        if low is None:
            return None
        points = {
            size: observation.used_bytes for size, observation in self.seen.items() if size < low
        }
        if self._fixed_bytes is not None:
            points.setdefault(0, self._fixed_bytes)
        apart = [size for size in points if size <= _NEAR * low] or [*points]
        if not apart:
            return None
        other = max(apart)
        slope = (self.seen[low].used_bytes - points[other]) / (low - other)
        return slope if slope > 0 else None

    def _is_flat(self, low: int) -> bool:
        """True if the peak has not grown for long."""
        below = [size for size in self.seen if size * _LEAP <= low]
        used = self.seen[low].used_bytes
        return (
            low >= _FLAT * self._step and bool(below) and used <= self.seen[max(below)].used_bytes
        )

    def _rounded(self, size: int) -> int:
        return size // self._step * self._step
