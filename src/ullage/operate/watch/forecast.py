"""When a job that grows from step to step will reach the limit of its GPU.

A straight line through the peaks of the latest steps (log/growth.py).

    forecast = forecast_limit(job.step_peaks, limit_bytes=80 * 2**30)
    forecast.seconds            # from the last step on; None: there is no forecast

The limit is a number of allocated bytes: at it, the allocator cannot get more from the driver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from ullage.ground.protocol.job import StepPeak
from ullage.log.growth import find_trend

MIN_STEPS: Final = 12
# The allocator rounds to 512 bytes; a few of them in each step are no leak that anybody meets.
_MIN_BYTES_PER_STEP: Final = 512.0


@dataclass(frozen=True, slots=True)
class Forecast:
    """The growth of a job's peak, and when it reaches the limit if it goes on.

    `steps` and `seconds` count from the last step; 0 if the limit is reached.
    """

    bytes_per_step: float
    steps: float
    seconds: float


def forecast_limit(peaks: Sequence[StepPeak], limit_bytes: int) -> Forecast | None:
    """The forecast; None if there are fewer than 12 steps, or if they do not grow significantly.

    Args:
        peaks: of the latest steps, oldest first.
        limit_bytes: the most that the job can have allocated.
    """
    if len(peaks) < MIN_STEPS:
        return None
    trend = find_trend([peak.allocated_peak_bytes for peak in peaks], [peak.step for peak in peaks])
    if trend is None or trend.rate < _MIN_BYTES_PER_STEP:
        return None
    steps = max(limit_bytes - trend.last, 0.0) / trend.rate
    return Forecast(trend.rate, steps, steps * median(peak.seconds for peak in peaks))
