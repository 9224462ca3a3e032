"""When a job that grows from step to step will reach the limit of its GPU.

A straight line through the peaks of the latest steps, by least squares. It counts only if the
growth is significant in the older and in the newer half of the steps, each by itself. So memory
that rises at the start and then stays level is not growing, nor is what only goes up and down.

    forecast = forecast_limit(job.step_peaks, limit_bytes=80 * 2**30)
    forecast.seconds            # from the last step on; None: there is no forecast

The limit is a number of allocated bytes: at it, the allocator cannot get more from the driver.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from ullage.protocol.job import StepPeak

__all__ = ["MIN_STEPS", "Forecast", "forecast_limit"]

MIN_STEPS: Final = 12
# A slope at this many standard errors is chance in one of several hundred halves without growth;
# both halves together are in one of some hundred thousand.
_MIN_SIGMAS: Final = 3.0
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
    num_steps_used: int


def forecast_limit(peaks: Sequence[StepPeak], limit_bytes: int) -> Forecast | None:
    """The forecast; None if there are fewer than 12 steps, or if they do not grow significantly.

    Args:
        peaks: of the latest steps, oldest first.
        limit_bytes: the most that the job can have allocated.
    """
    if len(peaks) < MIN_STEPS:
        return None
    middle = len(peaks) // 2
    halves = (_fit(peaks[:middle]), _fit(peaks[middle:]))
    if any(
        slope < _MIN_BYTES_PER_STEP or slope < _MIN_SIGMAS * error for slope, error, _ in halves
    ):
        return None
    slope, _, last_bytes = _fit(peaks)
    steps = max(limit_bytes - last_bytes, 0.0) / slope
    seconds = steps * median(peak.seconds for peak in peaks)
    return Forecast(slope, steps, seconds, len(peaks))


def _fit(peaks: Sequence[StepPeak]) -> tuple[float, float, float]:
    """The line's slope in bytes a step, its standard error, and its height at the last step."""
    count = len(peaks)
    mean_x = math.fsum(peak.step for peak in peaks) / count
    mean_y = math.fsum(peak.allocated_peak_bytes for peak in peaks) / count
    spread = math.fsum((peak.step - mean_x) ** 2 for peak in peaks)
    if spread == 0:
        return 0.0, 0.0, mean_y
    joint = math.fsum((peak.step - mean_x) * (peak.allocated_peak_bytes - mean_y) for peak in peaks)
    slope = joint / spread
    rest = math.fsum(
        (peak.allocated_peak_bytes - mean_y - slope * (peak.step - mean_x)) ** 2 for peak in peaks
    )
    error = math.sqrt(rest / (count - 2) / spread)
    return slope, error, mean_y + slope * (peaks[-1].step - mean_x)
