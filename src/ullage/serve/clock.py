"""The traffic's clock, and moments of the phantom's, for engines that run in this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeAlias

__all__ = ["Clock", "seconds_between"]

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

    def mark(self) -> _Moment:
        """The moment when the phantom has done all that it was given: an event of CUDA, of which
        two tell the seconds between them (seconds_between).
        """
        import torch

        torch.cuda.synchronize()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        event.synchronize()
        return event


def seconds_between(first: _Moment, second: _Moment) -> float:
    """By the phantom's clock, between two moments of Clock.mark; in whole microseconds, as the last
    digits of sums hang on what came before.
    """
    return round(float(first.elapsed_time(second)) / 1e3, 6)


def _real_clocks() -> dict[str, Callable[[], Any]]:
    wall, count = time.CLOCK_REALTIME, time.CLOCK_MONOTONIC
    return {
        "time": lambda: time.clock_gettime(wall),
        "time_ns": lambda: time.clock_gettime_ns(wall),
        "perf_counter": lambda: time.clock_gettime(count),
        "perf_counter_ns": lambda: time.clock_gettime_ns(count),
    }
