"""The traffic's clock, and moments of the phantom's, for engines that run in this process."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

from ullage.clock.given_work import GivenWork
from ullage.clock.reading import given_work
from ullage.log.work_log import EntryKind, parse_work
from ullage.operate.serve.step_times import Launches

_Moment: TypeAlias = Any
"""An event of CUDA, which has no type here."""


class Clock:
    """The traffic's clock, and the phantom's.

    Attributes:
        now_s: how far the host is, in seconds of the traffic.
        device_free_s: when the device has done all steps that it was given.
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self.device_free_s = 0.0
        # Where it is asked for the time, and no work was given for a while, the phantom's clock
        # goes on as the real one does. So nobody may ask it: a run would depend on the machine.
        for name, clock in _real_clocks().items():
            setattr(time, name, clock)

    def mark(self) -> Mark:
        """The moment when the phantom has done all that it was given."""
        import torch

        from ullage.players.inside.steps.work_log import end

        torch.cuda.synchronize()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        event.synchronize()
        return Mark(event, end())


class Mark(NamedTuple):
    """A moment: an event of CUDA, and the last row of the log of work."""

    event: _Moment
    row: int


def seconds_between(first: Mark, second: Mark) -> float:
    """By the phantom's clock; in whole microseconds, as the last digits of sums depend on what came
    before.
    """
    return round(float(first.event.elapsed_time(second.event)) / 1e3, 6)


def launches_between(first: Mark, second: Mark) -> Launches:
    """The kernels, copies and graphs that the host gave the device."""
    from ullage.players.inside.steps.work_log import WorkLog

    rows = WorkLog().rows_after(first.row)[: second.row - first.row]
    kinds = [row[5] for row in rows if row[5] in (EntryKind.GIVEN, EntryKind.GRAPH)]
    return Launches(len(kinds), kinds.index(EntryKind.GRAPH) if EntryKind.GRAPH in kinds else 0)


class Works:
    """The device's work, from the phantom's log: this process has one."""

    def __init__(self) -> None:
        from ullage.players.inside.steps.work_log import WorkLog

        self._log = WorkLog()
        self._works: list[GivenWork] = []
        self._graphs: defaultdict[int, list[int]] = defaultdict(list)
        self._num_captured = 0

    def between(self, first: Mark, second: Mark) -> Iterator[GivenWork]:
        """The pieces of work, those of graphs too."""
        rows = self._log.rows_after(first.row)[: second.row - first.row]
        new = self._log.works(len(self._works))
        self._works += [given_work(parse_work(row)) for row in new]
        captured = self._log.captured_after(self._num_captured)
        self._num_captured += len(captured)
        for row in captured:
            self._graphs[row[0]].append(row[1])
        for row in rows:
            if row[5] == EntryKind.GIVEN:
                yield self._works[row[1]]
            elif row[5] == EntryKind.GRAPH:
                yield from (self._works[work] for work in self._graphs[row[0]])


def _real_clocks() -> dict[str, Callable[[], Any]]:
    wall, count = time.CLOCK_REALTIME, time.CLOCK_MONOTONIC
    return {
        "time": lambda: time.clock_gettime(wall),
        "time_ns": lambda: time.clock_gettime_ns(wall),
        "perf_counter": lambda: time.clock_gettime(count),
        "perf_counter_ns": lambda: time.clock_gettime_ns(count),
    }
