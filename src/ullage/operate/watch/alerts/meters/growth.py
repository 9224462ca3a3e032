"""Measures growth: when a job's peak will reach its limit, and how fast it rises."""

from __future__ import annotations

import math
from typing import Final

from ullage.ground.units import format_bytes
from ullage.operate.watch.alerts.outlook import JobState
from ullage.operate.watch.alerts.reading import UNKNOWN, Measured, Meter, Subject
from ullage.operate.watch.forecast import MIN_STEPS

# A leak is told by more steps than a forecast: a cache that fills at the start is none.
_MIN_LEAK_STEPS: Final = 3 * MIN_STEPS


def measure_time_left(_: Meter, __: Subject, job: JobState) -> Measured:
    """Seconds until the peak reaches the limit; endless without growth, unknown before 12 steps."""
    forecast = job.view.forecast
    if len(job.view.job.step_peaks) < MIN_STEPS or job.view.limit_bytes is None:
        return UNKNOWN
    if forecast is None:
        return math.inf, "the peaks of its steps do not grow"
    return max(forecast.seconds - job.view.age_s, 0.0), (
        f"grows by {format_bytes(round(forecast.bytes_per_step))} a step; "
        f"{forecast.steps:.0f} steps are left to {format_bytes(job.limit_bytes)}"
    )


def measure_growth(_: Meter, __: Subject, job: JobState) -> Measured:
    """Bytes by which the peak grows from step to step; 0 without significant growth, unknown before
    36 steps, and on other GPUs than the job's fullest.
    """
    record = job.view.job
    fullest = max(record.devices, key=lambda each: each.allocated_peak_bytes)
    is_known = job.view.device is fullest and job.view.limit_bytes is not None
    if not is_known or len(record.step_peaks) < _MIN_LEAK_STEPS:
        return UNKNOWN
    rate = 0.0 if job.view.forecast is None else job.view.forecast.bytes_per_step
    return rate, (
        f"the peak of a step grew by {format_bytes(round(rate))} a step over the last "
        f"{len(record.step_peaks)}"
    )
