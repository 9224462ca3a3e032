"""The rate of a counter that only grows, and of one that does not.

rate = CounterRate()
rate.update(1000, now_s=10.0)      # Unknown: it needs two readings
rate.update(3000, now_s=12.0)      # 1000
rate.update(0, now_s=13.0)         # Unknown: the counter jumped back
"""

from __future__ import annotations

from ullage.watch.nvml.library import Unknown


class CounterRate:
    """The growth of one counter between its last two readings."""

    def __init__(self) -> None:
        self._count: int | None = None
        self._time_s = 0.0

    def update(self, count: int, now_s: float) -> int:
        """The counter's growth in a second since the last call.

        Raises:
            Unknown: there was no reading before, or the counter is lower than it was (the driver
                was reloaded, or it wrapped): the growth is not known, and is not guessed.
        """
        before, before_s = self._count, self._time_s
        self._count, self._time_s = count, now_s
        if before is None or now_s <= before_s:
            raise Unknown("a rate needs two readings")
        if count < before:
            raise Unknown("the counter jumped back")
        return round((count - before) / (now_s - before_s))
