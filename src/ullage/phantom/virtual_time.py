"""`--clock virtual`: the program's own clocks follow the simulated device.

Runs in the program's process. `time.perf_counter`, `time.time` and `time.sleep` are replaced before
the program's first line, and CUDA's events get the clock's times. Until torch is there they are the
real ones. From there on the clock shows how far the host has come, by the log of work: what it
needs to give work, and what it waits for. So a program that measures its steps prints the predicted
times.

While the host gives no work, it does something of its own, such as loading data. Then a question
moves the clock by a microsecond, and after 50 ms without work the clock goes on as the real one
does: a loop that waits for the time to pass comes to its end. `sleep` really sleeps, so that other
threads and processes get the time that the program leaves them; the clock goes on by as much.

`time.monotonic` stays real, since threads, queues and event loops wait by it. So do the clocks of
other threads that sleep, and those in C, such as NCCL's watchdogs.
"""

from __future__ import annotations

import ctypes
import math
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ullage.clock.cost import Cost
    from ullage.clock.simulation import Player

_REAL_PERF_COUNTER: Final = time.perf_counter
_REAL_TIME: Final = time.time
_REAL_SLEEP: Final = time.sleep
_QUESTION_S: Final = 1e-6
_OWN_WORK_S: Final = 0.05
_NS: Final = 1_000_000_000
_ELAPSED = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_uint64, ctypes.c_uint64)


class VirtualTime:
    """The clock of this process.

    Args:
        gpu: the name of the GPU in the catalogue.
        interconnect: the links between GPUs; empty: as its machines have them.
    """

    def __init__(self, gpu: str, interconnect: str) -> None:
        self._gpu_name, self._interconnect = gpu, interconnect
        self._lock = threading.RLock()
        self._played: _Played | None = None
        self._base_s = 0.0  # of perf_counter, when the clock began
        self._moved_s = 0.0  # by sleep, questions and the program's own work
        self._shown_s = -math.inf
        self._work_end_real_s = 0.0
        self._idle_s = 0.0
        self._callback: Any = None

    def install(self) -> None:
        """Replaces the clocks; they stay real until `begin`."""
        offset_s = _REAL_TIME() - _REAL_PERF_COUNTER()
        time.perf_counter = self.now_s
        time.time = lambda: self.now_s() + offset_s
        time.perf_counter_ns = lambda: round(self.now_s() * _NS)
        time.time_ns = lambda: round((self.now_s() + offset_s) * _NS)
        time.sleep = self._sleep  # type: ignore[assignment]

    def begin(self) -> None:
        """The log of work has begun; from here on the clock follows it."""
        from ullage.record.session.library import bind
        from ullage.record.timing.work_log import WorkLog

        self._played = _Played(self._gpu_name, self._interconnect)
        WorkLog.before_step = self._played.advance
        self._base_s = self._work_end_real_s = _REAL_PERF_COUNTER()
        self._callback = _ELAPSED(self._elapsed_ms)
        bind("ullage_on_elapsed", None, _ELAPSED)(self._callback)

    def now_s(self) -> float:
        """What time.perf_counter() says."""
        if self._played is None:
            return _REAL_PERF_COUNTER()
        with self._lock:
            real_s = _REAL_PERF_COUNTER()
            if self._played.advance():
                self._work_end_real_s, self._idle_s = real_s, 0.0
            else:
                self._pass_idle(real_s - self._work_end_real_s)
            seconds = self._base_s + self._played.host_s + self._moved_s
            self._shown_s = max(self._shown_s, seconds)
            return self._shown_s

    def _pass_idle(self, real_s: float) -> None:
        """The host has given no work for so long."""
        step_s = real_s - self._idle_s if real_s > _OWN_WORK_S else _QUESTION_S
        self._idle_s += step_s
        self._moved_s += max(step_s, 0.0)

    def _sleep(self, seconds: float) -> None:
        is_followed = threading.current_thread() is threading.main_thread()
        if self._played is not None and is_followed:
            self.now_s()
        _REAL_SLEEP(seconds)
        if self._played is None or not is_followed:
            return
        with self._lock:
            self._moved_s += seconds
            self._work_end_real_s, self._idle_s = _REAL_PERF_COUNTER(), 0.0

    def _elapsed_ms(self, start: int, end: int) -> float:
        if self._played is None:
            return math.nan
        with self._lock:
            self._played.advance()
            return self._played.between_ms(start, end)


class _Played:
    """The log as far as it has been played, by likely costs."""

    def __init__(self, gpu_name: str, interconnect: str) -> None:
        from ullage.clock.costs import cost_of
        from ullage.clock.host import host_costs
        from ullage.clock.interconnect import parse_interconnect
        from ullage.clock.simulation import Player, WorkTimes
        from ullage.gpus import find_gpu
        from ullage.record.timing.work_log import WorkLog

        gpu = find_gpu(gpu_name)  # what is changed of its memory changes no time
        links = parse_interconnect(interconnect) if interconnect else None
        self._cost_of: Callable[[Any], Cost] = lambda work: cost_of(gpu, work, links)
        self._log = WorkLog()
        self._costs: list[Cost] = []
        self._seconds: list[float] = []
        self._graph_seconds: dict[int, float] = {}
        self._computes: list[bool] = []
        self._num_captured = 0
        self._serial = 0
        times = WorkTimes(self._seconds, self._graph_seconds, self._computes)
        self._player: Player = Player(0, times, host_costs(gpu).likely)

    @property
    def host_s(self) -> float:
        """How far the host is."""
        return self._player.host_s

    def advance(self) -> bool:
        """Plays what has come since; False: nothing has."""
        from ullage.record.timing.work_log import end

        if end() == self._serial:
            return False
        self._look_up_costs()
        rows = self._log.rows_after(self._serial)
        for row in rows:
            self._player.play(row)
        self._serial += len(rows)
        return bool(rows)

    def between_ms(self, start: int, end: int) -> float:
        """The milliseconds between two records; NAN where one is not known."""
        from_s, to_s = self._player.record_s(start), self._player.record_s(end)
        return math.nan if from_s is None or to_s is None else (to_s - from_s) * 1e3

    def _look_up_costs(self) -> None:
        from ullage.clock.reading import given_work
        from ullage.clock.step import computes_on_device, graph_costs
        from ullage.trace.work_log import parse_entries, parse_work

        rows = self._log.works(len(self._costs))
        self._costs += [self._cost_of(given_work(parse_work(row))) for row in rows]
        new = self._costs[len(self._seconds) :]
        self._seconds += [cost.duration.s for cost in new]
        self._computes += [computes_on_device(cost) for cost in new]
        captured = self._log.captured()
        if len(captured) != self._num_captured:
            self._num_captured = len(captured)
            costs = graph_costs(parse_entries(captured, "captured", len(self._costs)), self._costs)
            self._graph_seconds.update((graph, cost.duration.s) for graph, cost in costs.items())
