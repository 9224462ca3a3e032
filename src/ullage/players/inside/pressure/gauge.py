"""Reads the allocator's own counters at the end of a step, and where a request begins or ends; who
wants to know of the step is told.

torch has one way to them, `_cuda_memoryStats`, which takes some 14 microseconds a device. In the
mode "counters" the peaks of a step are read with it anyway, and the same answer is used here; in
the other modes it is read once a step, of the devices in use alone.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import operator
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ullage.players.inside.part import Part
from ullage.players.inside.pressure.generation import watch_generation
from ullage.players.inside.pressure.request_log import Request, RequestLog
from ullage.players.inside.pressure.step_windows import NUM_RECENT, Level, StepWindows
from ullage.players.inside.steps.step_rows import MAX_ROWS, StepRows

if TYPE_CHECKING:
    from ullage.log.record_schema import PressureFields
    from ullage.players.inside.allocator.peaks import Peaks
    from ullage.players.inside.patches import Patches

Stats = Mapping[str, Any]
Bytes = tuple[int, int]  # allocated, reserved
_open_here: contextvars.ContextVar[Request | None] = contextvars.ContextVar("open", default=None)


class PressureGauge(Part):
    """The pressure of a recording, and the peaks of its steps.

    Args:
        torch, peaks: of the process.
        on_step: are told of each step: allocated and reserved bytes at most, and its seconds.
        max_rows: of the peaks of steps.
        take_peak: gives the highest bytes of a device since it was last called.
        is_on: whether the recording lasts.
        on_error: called with an exception of our own, which the program must not see.
    """

    def __init__(
        self,
        torch: ModuleType,
        peaks: Peaks,
        *,
        on_step: Sequence[Callable[[int, int, float], None]] = (),
        max_rows: int = MAX_ROWS,
        take_peak: Callable[[int], Bytes],
        is_on: Callable[[], bool],
        on_error: Callable[[Exception], None],
    ) -> None:
        self._cuda: Any = torch.cuda
        self._peaks = peaks
        self._take_peak = take_peak
        self._is_on = is_on
        self._on_error = on_error
        self._pid = os.getpid()
        self._began_s = self._step_began_s = time.monotonic()
        self._told = on_step
        self.step_peaks = StepRows((max, max, operator.add), max_rows)
        # A signal may end the program, which writes the record, while its thread holds this.
        self._lock = threading.RLock()
        self._steps = StepWindows()
        self._requests = RequestLog()
        self._since_step: dict[int, Bytes] = {}
        self._stats: dict[int, Stats] = {}  # of the devices in use, when they were last read
        self._counts: dict[int, tuple[int, int]] = {}  # when the last step ended
        self._has_device_frees = False

    # ---- Steps -------------------------------------------------------------------------------

    def end_step(self, _count: int) -> None:
        """A step has ended; its highest bytes are of the fullest device."""
        if not self._cuda.is_initialized():
            return
        now_s = time.monotonic()
        with self._lock:
            self._look()
            levels = max(self._since_step.values(), default=(0, 0))
            self._since_step.clear()
        seconds, self._step_began_s = now_s - self._step_began_s, now_s
        self.step_peaks.add(*levels, seconds)
        self.add_step(*levels, seconds)
        for tell in self._told:
            tell(*levels, seconds)

    def add_step(self, allocated_bytes: int, reserved_bytes: int, seconds: float) -> None:
        """Counts the step, and what it cost."""
        with self._lock:
            now_s = time.monotonic() - self._began_s
            retries, frees = self._count_since_step()
            split = [_current(stats, "inactive_split_bytes") for stats in self._stats.values()]
            level = Level(allocated_bytes, reserved_bytes, max(split, default=0), retries, frees)
            self._steps.add(now_s - seconds, seconds, level)
            if self._requests.open:
                allocated = self._allocated_now()
                for request in self._requests.open:
                    request.note_call(allocated)

    def _look(self) -> None:
        """Reads all devices; what they reached counts for the step and for open requests."""
        if not self._cuda.is_initialized():
            return
        for device in range(self._cuda.device_count()):
            allocated, reserved = self._take_peak(device)
            if reserved or device in self._stats:
                self._stats[device] = stats = self._peaks.latest(device)
                self._has_device_frees |= "num_device_free" in stats
                # The hook tells of changes alone: what did not change was reached all the same.
                allocated = max(allocated, _current(stats, "allocated_bytes"))
                reserved = max(reserved, _current(stats, "reserved_bytes"))
            before = self._since_step.get(device, (0, 0))
            self._since_step[device] = max(before[0], allocated), max(before[1], reserved)
            for request in self._requests.open:
                request.reach(device, allocated)

    def _count_since_step(self) -> tuple[int, int]:
        retries = frees = 0
        for device, stats in self._stats.items():
            now = self._peaks.count_pressure(device, stats)
            before = self._counts.get(device, (0, 0))
            retries, frees = retries + now[0] - before[0], frees + now[1] - before[1]
            self._counts[device] = now
        return retries, frees

    def _allocated_now(self) -> int:
        return sum(_current(stats, "allocated_bytes") for stats in self._stats.values())

    # ---- Requests ----------------------------------------------------------------------------

    def install(self, patches: Patches) -> None:
        """Makes a request of each call of transformers' `generate()`."""
        watch_generation(patches, self.request)

    @contextlib.contextmanager
    def request(self, name: str, num_tokens: int | None = None) -> Iterator[Request]:
        """While this lasts, a request is answered; exceptions pass through.

        Raises:
            SpecError: the name is not a text, or the tokens are not a number.
        """
        around = _open_here.get()
        request = Request(name, num_tokens, around)
        is_begun = self._guard(functools.partial(self._begin, request))
        has_failed = True
        _open_here.set(request)
        try:
            yield request
            has_failed = False
        finally:
            _open_here.set(around)
            if is_begun:
                self._guard(functools.partial(self._end, request, has_failed=has_failed))

    def _begin(self, request: Request) -> None:
        with self._lock:
            self._look()
            allocated = self._allocated_now()
            now_s = time.monotonic() - self._began_s
            self._requests.begin(request, now_s, allocated)
            for device, stats in self._stats.items():
                request.reach(device, _current(stats, "allocated_bytes"))

    def _end(self, request: Request, *, has_failed: bool) -> None:
        now_s = time.monotonic() - self._began_s  # before the counters are read
        with self._lock:
            try:
                self._look()
            finally:  # it is not left open
                self._requests.end(request, now_s, self._allocated_now(), has_failed=has_failed)

    def _guard(self, call: Callable[[], None]) -> bool:
        """Calls it while the recording lasts, and in its process alone; whether that went well."""
        if not self._is_on() or os.getpid() != self._pid:
            return False
        try:
            call()
        except Exception as error:
            self._on_error(error)
            return False
        return True

    # ---- The record --------------------------------------------------------------------------

    def fields(self) -> dict[str, Any]:
        """The fields known by now, as a part of what was measured."""
        peaks = [[*map(int, row[:4]), row[4]] for row in self.step_peaks.rows()]
        return {"measured": {"step_peaks": peaks, "pressure": self.pressure()}}

    def pressure(self) -> PressureFields:
        """The allocator's, beside times."""
        with self._lock:
            return {
                "step_times": self._steps.time_rows(),
                "windows": self._steps.window_rows(),
                "window_times": self._steps.window_time_rows(),
                "num_recent": NUM_RECENT,
                "has_device_frees": self._has_device_frees,
                "num_requests": self._requests.num_requests,
                "request_times": self._requests.time_rows(),
                "last_requests": self._requests.rows(),
                "token_growth": self._requests.growth_rows(),
            }


def _current(stats: Stats, name: str) -> int:
    """A level of now; 0 where a backend does not keep it."""
    value: int = stats.get(name, {}).get("all", {}).get("current", 0)
    return value
