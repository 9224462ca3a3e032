"""Meters of growth: when a job's peak will reach its limit, and how fast it rises."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from ullage.units import format_bytes
from ullage.watch.alerts.meters.memory import job_subject, jobs_of
from ullage.watch.alerts.outlook import Outlook
from ullage.watch.alerts.reading import Meter, Reading
from ullage.watch.forecast import MIN_STEPS

# A leak is told by more steps than a forecast: a cache that fills at the start is none.
_MIN_LEAK_STEPS: Final = 3 * MIN_STEPS


class TimeLeft(Meter):
    """Seconds until the peak reaches the limit; endless without growth, unknown before 12 steps."""

    def read(self, outlook: Outlook) -> Iterator[Reading]:
        """A reading of each job on each GPU."""
        for job in jobs_of(outlook):
            forecast = job.view.forecast
            if len(job.view.job.step_peaks) < MIN_STEPS or job.view.limit_bytes is None:
                yield Reading(job_subject(job), None)
            elif forecast is None:
                yield Reading(job_subject(job), math.inf, "the peaks of its steps do not grow")
            else:
                seconds = max(forecast.seconds - job.view.age_s, 0.0)
                text = (
                    f"grows by {format_bytes(round(forecast.bytes_per_step))} a step; "
                    f"{forecast.steps:.0f} steps are left to {format_bytes(job.limit_bytes)}"
                )
                yield Reading(job_subject(job), seconds, text)


class Growth(Meter):
    """Bytes by which the peak grows from step to step; 0 without significant growth, unknown before
    36 steps.
    """

    def read(self, outlook: Outlook) -> Iterator[Reading]:
        """A reading of each job on its fullest GPU."""
        for job in jobs_of(outlook):
            record = job.view.job
            fullest = max(record.devices, key=lambda each: each.allocated_peak_bytes)
            is_known = job.view.device is fullest and job.view.limit_bytes is not None
            if not is_known or len(record.step_peaks) < _MIN_LEAK_STEPS:
                yield Reading(job_subject(job), None)
                continue
            forecast = job.view.forecast
            rate = 0.0 if forecast is None else forecast.bytes_per_step
            text = (
                f"the peak of a step grew by {format_bytes(round(rate))} a step over the last "
                f"{len(record.step_peaks)}"
            )
            yield Reading(job_subject(job), rate, text)
