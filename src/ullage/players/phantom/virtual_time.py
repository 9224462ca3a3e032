"""`--clock virtual`: the program's own clocks follow the simulated device.

Runs in the program's process. `time.perf_counter`, `time.time` and `time.sleep` are replaced before
the program's first line; CUDA's events and the records of PyTorch's profiler get the clock's times
(csrc/machine/activity.c). Until torch is there they are the real ones. From there on the clock
shows how far the host has come, by the log of work: what it needs to give work, and what it waits
for. So a program that measures its steps prints the predicted times.

While the host gives no work, it does something of its own, such as loading data. Then a question
moves the clock by a microsecond, and after 50 ms without work the clock goes on as the real one
does: a loop that waits for the time to pass comes to its end. What passes between two pieces of
work without a question is not counted. `sleep` really sleeps, so that other threads and processes
get the time that the program leaves them; the clock goes on by as much.

`time.monotonic` stays real, since threads, queues and event loops wait by it. So do the clocks of
other threads that sleep, and those in C, such as NCCL's watchdogs.
"""

from __future__ import annotations

import ctypes
import math
import threading
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ullage.clock.contention import Bound, Load
    from ullage.clock.cost import Cost
    from ullage.clock.simulation import Player
    from ullage.players.phantom.nvml.load import Load as NvmlLoad

_REAL_PERF_COUNTER: Final = time.perf_counter
_REAL_TIME: Final = time.time
_REAL_SLEEP: Final = time.sleep
_QUESTION_S: Final = 1e-6
_OWN_WORK_S: Final = 0.05
_NS: Final = 1_000_000_000
_ELAPSED = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_uint64, ctypes.c_uint64)
_TIMES = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_uint64), ctypes.POINTER(ctypes.c_double), ctypes.c_uint64
)
_NUM_TIMES: Final = 4  # struct activity_times of activity.h


class VirtualTime:
    """The clock of this process.

    Args:
        gpu: the name of the GPU in the catalogue.
        interconnect: the links between GPUs; empty: those of its machines.
        num_told: how many devices NVML programs are told the load of.
    """

    def __init__(self, gpu: str, interconnect: str, num_told: int = 0) -> None:
        self._gpu_name, self._interconnect = gpu, interconnect
        self._lock = threading.RLock()
        self._played: _Played | None = None
        self._base_s = 0.0  # of perf_counter, when the clock began
        self._shown_s = -math.inf
        self._work_end_real_s = 0.0
        self._idle_s = 0.0
        self._callbacks: tuple[Any, ...] = ()
        self._num_told = num_told
        self._load: NvmlLoad | None = None

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
        from ullage.players.inside.library import bind
        from ullage.players.inside.steps.work_log import WorkLog

        if self._num_told:
            from ullage.players.phantom.nvml.load import Load as NvmlLoad

            self._load = NvmlLoad(self._num_told)
            self._load.tell(0.0)
        self._played = _Played(self._gpu_name, self._interconnect, self._load)
        WorkLog.before_step = self._advance
        self._base_s = self._work_end_real_s = _REAL_PERF_COUNTER()
        elapsed, times = _ELAPSED(self._elapsed_ms), _TIMES(self._write_times)
        self._callbacks = elapsed, times  # which C keeps no reference to
        bind("ullage_on_elapsed", None, _ELAPSED)(elapsed)
        bind("ullage_on_times", None, _TIMES)(times)

    def now_s(self) -> float:
        """The time that time.perf_counter() says."""
        if self._played is None:
            return _REAL_PERF_COUNTER()
        with self._lock:
            real_s = _REAL_PERF_COUNTER()
            if not self._advance():
                self._played.pass_time(self._idle_step_s(real_s - self._work_end_real_s))
            seconds = self._base_s + self._played.host_s
            self._shown_s = max(self._shown_s, seconds)
            return self._shown_s

    def _idle_step_s(self, real_s: float) -> float:
        """The seconds that pass with a question, where the host has given no work for so long."""
        step_s = real_s - self._idle_s if real_s > _OWN_WORK_S else _QUESTION_S
        self._idle_s += step_s
        return max(step_s, 0.0)

    def _sleep(self, seconds: float) -> None:
        is_followed = threading.current_thread() is threading.main_thread()
        if self._played is not None and is_followed:
            self.now_s()
            if self._load is not None:
                self._load.tell(self._played.host_s + seconds)
        _REAL_SLEEP(seconds)
        if self._played is None or not is_followed:
            return
        with self._lock:
            self._played.pass_time(seconds)
            self._work_end_real_s, self._idle_s = _REAL_PERF_COUNTER(), 0.0

    def _elapsed_ms(self, start: int, end: int) -> float:
        if self._played is None:
            return math.nan
        with self._lock:
            self._advance()
            return self._played.between_ms(start, end)

    def _advance(self) -> bool:
        """Plays what has come since, which takes a while itself; False: nothing has."""
        with self._lock:
            if self._played is None:
                return False
            has_come = self._played.advance()
            if self._load is not None:
                self._load.tell(self._played.host_s)
            if not has_come:
                return False
            self._work_end_real_s, self._idle_s = _REAL_PERF_COUNTER(), 0.0
            return True

    def _write_times(self, serials: Sequence[int], records: ctypes.Array[Any], count: int) -> None:
        """Answers the profiler (activity.c): of each row of the log four seconds."""
        if self._played is None:
            return
        with self._lock:
            self._advance()
            row_times = array("d")
            for serial in serials[:count]:
                row_times.extend(self._played.row_times(serial))
        address, num_bytes = row_times.buffer_info()
        ctypes.memmove(records, address, num_bytes * row_times.itemsize)


class _Played:
    def __init__(self, gpu_name: str, interconnect: str, load: NvmlLoad | None = None) -> None:
        from ullage.clock.costs import cost_of
        from ullage.clock.host import HOST_COSTS
        from ullage.clock.interconnect import parse_interconnect
        from ullage.clock.simulation import Player, WorkTimes
        from ullage.facts.gpus import find_gpu
        from ullage.log.work_log import EntryKind
        from ullage.players.inside.steps.work_log import WorkLog

        gpu = find_gpu(gpu_name)  # what is changed of its memory changes no time
        links = parse_interconnect(interconnect) if interconnect else None
        self._cost_of: Callable[[Any], Cost] = lambda work: cost_of(gpu, work, links)
        self._log = WorkLog()
        self._load = load
        self._costs: list[Cost] = []
        self._seconds: list[float] = []
        self._graph_seconds = _GraphSeconds(self._costs)
        self._uses: list[Bound | Load | None] = []
        self._serial = 0
        self._calls = array("d"), array("d")  # of each row, see row_times
        times = WorkTimes(self._seconds, self._graph_seconds, self._uses, 1.0)
        host = HOST_COSTS.likely
        self._host_s = {  # by kind of row
            int(EntryKind.GIVEN): host.launch_s,
            int(EntryKind.GRAPH): host.graph_s,
        }
        self._player: Player = Player(0, times, host)

    @property
    def host_s(self) -> float:
        return self._player.host_s

    def pass_time(self, seconds: float) -> None:
        """The host gives no work for so long."""
        self._player.pass_time(seconds)

    def advance(self) -> bool:
        """Plays what has come since; False: nothing has."""
        from ullage.players.inside.steps.work_log import end

        if end() == self._serial:
            return False
        # First the rows, then what they refer to: other threads may give work meanwhile.
        rows = self._log.rows_after(self._serial)
        self._look_up_costs()
        for row in rows:
            self._play(row)
        self._serial += len(rows)
        return bool(rows)

    def row_times(self, serial: int) -> tuple[float, float, float, float]:
        """The times of a row: its start, its end, and from when until when its call holds the host
        up, by the program's clock; NAN where it is not known.

        What the host needs to give work counts before the call, where the operator is.
        """
        index = serial - 1
        if not 0 <= index < len(self._calls[0]):
            return (math.nan,) * _NUM_TIMES
        player, (begin, until) = self._player, self._calls
        return player.starts[index], player.ends[index], begin[index], until[index]

    def _play(self, row: tuple[int, ...]) -> None:
        begin_s = self.host_s + self._host_s.get(row[5], 0.0)
        self._player.play(row)
        self._calls[0].append(min(begin_s, self.host_s))
        self._calls[1].append(self.host_s)
        if self._load is not None:
            self._load.add(row, self._costs, self._player.starts[-1], self._player.ends[-1])

    def between_ms(self, start: int, end: int) -> float:
        """The milliseconds between two records; NAN where one is not known."""
        from_s, to_s = self._player.record_s(start), self._player.record_s(end)
        return math.nan if from_s is None or to_s is None else (to_s - from_s) * 1e3

    def _look_up_costs(self) -> None:
        from ullage.clock.reading import given_work
        from ullage.log.work_log import parse_work

        rows = self._log.works(len(self._costs))
        self._costs += [self._cost_of(given_work(parse_work(row))) for row in rows]
        new = self._costs[len(self._seconds) :]
        self._seconds += [cost.duration.s for cost in new]
        self._uses += [cost.use for cost in new]
        self._graph_seconds.note(self._log.captured_after(self._graph_seconds.num_rows))


class _GraphSeconds(Mapping[int, float]):
    """The seconds of graphs, each counted when it is first played: an engine captures hundreds
    before it plays one.

    Attributes:
        num_rows: of what captures have collected, those that were noted.
    """

    def __init__(self, costs: Sequence[Cost]) -> None:
        self.num_rows = 0
        self._costs = costs
        self._rows: defaultdict[int, list[tuple[int, ...]]] = defaultdict(list)
        self._seconds: dict[int, float] = {}

    def note(self, captured: Sequence[tuple[int, ...]]) -> None:
        self.num_rows += len(captured)
        for row in captured:
            self._rows[row[0]].append(row)
            self._seconds.pop(row[0], None)

    def __getitem__(self, graph: int) -> float:
        from ullage.clock.step import graph_cost

        if graph not in self._rows:
            raise KeyError(graph)
        if graph not in self._seconds:
            self._seconds[graph] = graph_cost(self._rows[graph], self._costs).duration.s
        return self._seconds[graph]

    def __iter__(self) -> Iterator[int]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)
