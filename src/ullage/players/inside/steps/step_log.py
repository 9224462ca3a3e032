"""Tells a function of the program's, such as one that logs to an experiment tracker, of the steps
of a recording: at most once a second, and never to the program's harm.

steps = StepLog(torch, lambda values, step: run.log(values, step=step))
steps.note_step(allocated_bytes, reserved_bytes, seconds)
steps.close()
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ullage.players.inside.part import Part

Log = Callable[[dict[str, float], int], object]
"""Takes the figures by name, in bytes and seconds, and the number of the last step of them."""
_INTERVAL_S = 1.0
_MAX_CHARS = 200
# What of a web address may be a secret: the user's name and password, and the query.
_SECRETS = re.compile(r"(?<=://)[^\s/@]*@|(?<=\?)\S+")


class StepLog(Part):
    """The steps since the last report, and the function that is told of them; one that raises is
    said on stderr, and told nothing more.

    Args:
        torch: for the allocator's state.
        log: is told.
        clock: seconds.
    """

    def __init__(
        self, torch: ModuleType, log: Log, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._torch = torch
        self._log: Log | None = log
        self._clock = clock
        self._due_s = clock()
        self._num_steps = 0
        self._clear()

    def _clear(self) -> None:
        self._allocated_bytes = self._reserved_bytes = self._num_new = 0
        self._seconds = 0.0

    def note_step(self, allocated_bytes: int, reserved_bytes: int, seconds: float) -> None:
        """One more step has ended, with these peaks; raises nothing."""
        self._num_steps += 1
        self._num_new += 1
        self._allocated_bytes = max(self._allocated_bytes, allocated_bytes)
        self._reserved_bytes = max(self._reserved_bytes, reserved_bytes)
        self._seconds += seconds
        now_s = self._clock()
        if now_s >= self._due_s:
            self._due_s = now_s + _INTERVAL_S
            self._tell()

    def close(self) -> None:
        """Tells what is not told yet, and then nothing more; raises nothing."""
        if self._num_new:
            self._tell()
        self._log = None

    def _tell(self) -> None:
        if self._log is None:
            return
        try:
            self._log(self._figures(), self._num_steps)
        except Exception as error:
            self._log = None
            line = _SECRETS.sub("...", str(error).strip().partition("\n")[0])[:_MAX_CHARS]
            print(
                f"ullage: no more steps are logged: {type(error).__name__}: {line}", file=sys.stderr
            )
        self._clear()

    def _figures(self) -> dict[str, float]:
        """The highest peaks and the mean time of the steps since the last report; of the device
        that holds the most, the state of the allocator now. The headroom is the distance of the
        allocated peak to what the allocator has reserved and what is free on the GPU.
        """
        torch: Any = self._torch
        counters = [torch._C._cuda_memoryStats(index) for index in range(torch.cuda.device_count())]
        levels = [stats["reserved_bytes"]["all"]["current"] for stats in counters]
        fullest = levels.index(max(levels))
        stats, (free_bytes, _) = counters[fullest], torch.cuda.mem_get_info(fullest)
        figures = {
            "allocated_peak_bytes": self._allocated_bytes,
            "reserved_peak_bytes": self._reserved_bytes,
            "fragmented_bytes": stats["inactive_split_bytes"]["all"]["current"],
            "headroom_bytes": levels[fullest] + free_bytes - self._allocated_bytes,
            "step_seconds": self._seconds / self._num_new,
            "alloc_retries": stats["num_alloc_retries"],
            "ooms": stats["num_ooms"],
        }
        return {f"ullage/{name}": float(value) for name, value in figures.items()}
