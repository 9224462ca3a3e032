"""How busy devices are by the virtual clock, told to NVML programs.

Runs in the program's process. NVML's utilisation is the share of the last second in which a kernel
ran. Copies by the copy engines do not count. Its memory utilisation is here the share in which
kernels ran whose time memory decides. Both are as of the program's last step or look at its clock.

    load = Load(num_devices=1)
    load.add(row, costs, start_s=0.25, end_s=0.5)
    load.tell(now_s=1.0)                # device 0: 25 %
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from ctypes import c_int
from typing import Final

from ullage.clock.cost import Category, Cost
from ullage.log.work_log import EntryKind
from ullage.players.inside.library import bind

_WINDOW_S: Final = 1.0
_BIN_S: Final = 0.01
_BINS: Final = round(_WINDOW_S / _BIN_S)


class Share:
    """The share of the last second that intervals cover.

    The intervals of several streams may overlap. One that begins before another that was added
    earlier counts from the end of that: in a gap it is left out, so the share is a lower bound.
    """

    def __init__(self) -> None:
        self._seconds: defaultdict[int, float] = defaultdict(float)  # by bin
        self._covered_until_s = 0.0

    def add(self, start_s: float, end_s: float) -> None:
        """Something runs from `start_s` to `end_s`."""
        begin_s = max(start_s, self._covered_until_s)
        while begin_s < end_s:
            number = math.floor(begin_s / _BIN_S)
            until_s = min(end_s, max((number + 1) * _BIN_S, math.nextafter(begin_s, math.inf)))
            self._seconds[number] += until_s - begin_s
            begin_s = until_s
        self._covered_until_s = max(self._covered_until_s, end_s)

    def percent(self, now_s: float) -> int:
        """The percentage of the second before `now_s`, in whole bins; forgets what is older."""
        last = math.floor(now_s / _BIN_S)
        for number in [number for number in self._seconds if number < last - _BINS]:
            del self._seconds[number]
        first = max(0, last - _BINS)
        seconds = sum(self._seconds.get(number, 0.0) for number in range(first, last))
        window_s = (last - first) * _BIN_S
        return min(100, round(100 * seconds / window_s)) if window_s else 0


class Load:
    """The devices of this process."""

    def __init__(
        self, num_devices: int, publish: Callable[[int, int, int], object] | None = None
    ) -> None:
        self._busy = [Share() for _ in range(num_devices)]
        self._memory = [Share() for _ in range(num_devices)]
        self._publish = publish or bind("ullage_publish_load", None, c_int, c_int, c_int)
        self._last_bin = -1

    def add(self, row: Sequence[int], costs: Sequence[Cost], start_s: float, end_s: float) -> None:
        """A row of the log of work, and when it begins and ends; only kernels count."""
        _, work, _, _, _, kind, device = row
        if kind not in (EntryKind.GIVEN, EntryKind.GRAPH) or device >= len(self._busy):
            return
        category = costs[work].category if kind == EntryKind.GIVEN else Category.UNKNOWN
        if category is Category.COPIES:
            return
        self._busy[device].add(start_s, end_s)
        if category is Category.MEMORY_BOUND:
            self._memory[device].add(start_s, end_s)

    def tell(self, now_s: float) -> None:
        """Publishes the shares of each device, if the clock has moved enough to change them."""
        last = math.floor(now_s / _BIN_S)
        if last == self._last_bin:
            return
        self._last_bin = last
        for device, (busy, memory) in enumerate(zip(self._busy, self._memory, strict=True)):
            self._publish(device, busy.percent(now_s), memory.percent(now_s))
