"""The queue and the cache of an engine over time."""

from __future__ import annotations

from typing import Any, Final

_MOST_ROWS: Final = 4096


class LevelLog:
    """Rows over time, at most _MOST_ROWS: then every second one goes. Of the cache's occupancy also
    the highest and the mean, of which nothing goes.

    A step takes its blocks when it is scheduled, and requests give theirs back after it. So the
    occupancy is taken at both moments, and counts until the next one: what a step alone needs, such
    as that of a request with one token, is seen, and so is an idle time with a cache that is empty.

    Attributes:
        rows: seconds, requests that run and that wait, and the occupancy, from 0 to 1.
        peak_frac: the highest occupancy.
    """

    def __init__(self) -> None:
        self.rows: list[tuple[float, int, int, float]] = []
        self.peak_frac, self._area, self._last = 0.0, 0.0, (0.0, 0.0)
        self._apart_s = 0.0

    def take(self, now_s: float, usage: float) -> None:
        """The occupancy from now on."""
        before_s, before = self._last
        self._area += (now_s - before_s) * before
        self._last = now_s, usage
        self.peak_frac = max(self.peak_frac, usage)

    def note(self, now_s: float, running: int, waiting: int, usage: float) -> None:
        """The state from now on, as a row."""
        self.take(now_s, usage)
        if self.rows and now_s - self.rows[-1][0] < self._apart_s:
            return
        self.rows.append((now_s, running, waiting, usage))
        if len(self.rows) > _MOST_ROWS:
            self._apart_s = 2 * max(self._apart_s, now_s / _MOST_ROWS)
            self.rows = self.rows[::2]

    @property
    def mean_frac(self) -> float:
        """The mean occupancy over time."""
        return self._area / self._last[0] if self._last[0] else 0.0

    @property
    def document(self) -> dict[str, Any]:
        """For JSON, as ullage.operate.serve.outcome.read_outcome takes it."""
        return {
            "levels": {
                name: [row[column] for row in self.rows]
                for column, name in enumerate(("time_s", "running", "waiting", "usage_frac"))
            },
            "usage_peak_frac": self.peak_frac,
            "usage_mean_frac": self.mean_frac,
        }
