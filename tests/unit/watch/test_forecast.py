"""Growth is forecast where it is there, and nowhere else."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage.ground.protocol.job import StepPeak
from ullage.operate.watch.forecast import MIN_STEPS, forecast_limit

GIB, MIB = 2**30, 2**20


def peaks_of(*sizes: float, seconds: float = 0.5) -> list[StepPeak]:
    """The peaks of steps that follow each other."""
    return [StepPeak(step, int(size), int(size), seconds) for step, size in enumerate(sizes)]


@given(st.integers(MIN_STEPS, 64), st.integers(1, 512), st.integers(1, 40), st.floats(0.01, 10.0))
def test_a_straight_leak_is_forecast_to_the_step(
    count: int, mib: int, gib: int, seconds: float
) -> None:
    start, limit = gib * GIB, 100 * GIB
    peaks = peaks_of(*(start + step * mib * MIB for step in range(count)), seconds=seconds)
    forecast = forecast_limit(peaks, limit)
    assert forecast is not None
    steps = (limit - peaks[-1].allocated_peak_bytes) / (mib * MIB)  # counted, not fitted
    assert forecast.steps == pytest.approx(steps, rel=1e-6)
    assert forecast.seconds == pytest.approx(steps * seconds, rel=1e-6)


def test_a_leak_under_noise_is_forecast() -> None:
    chance = random.Random(1)
    peaks = peaks_of(
        *(10 * GIB + step * 64 * MIB + chance.gauss(0, 100 * MIB) for step in range(64))
    )
    forecast = forecast_limit(peaks, 20 * GIB)
    assert forecast is not None
    assert forecast.bytes_per_step == pytest.approx(64 * MIB, rel=0.1)
    assert forecast.steps == pytest.approx(160 - 63, rel=0.1)


LEVEL = [10 * GIB] * 64
COURSES = {
    "level": LEVEL,
    "start": [2 * GIB, 6 * GIB, 9 * GIB, *LEVEL],
    "late rise, then level": [*([4 * GIB] * 20), *([9 * GIB] * 44)],
    "falling": [20 * GIB - step * 64 * MIB for step in range(64)],
    "two lengths by turns": [(10 + step % 2) * GIB for step in range(64)],
    "one spike": [*([4 * GIB] * 60), 9 * GIB, *([4 * GIB] * 3)],
    "few steps": [GIB * step for step in range(MIN_STEPS - 1)],
    "bytes": [10 * GIB + 100 * step for step in range(64)],
}


@pytest.mark.parametrize("sizes", COURSES.values(), ids=COURSES)
def test_what_does_not_grow_has_no_forecast(sizes: list[int]) -> None:
    assert forecast_limit(peaks_of(*sizes), 80 * GIB) is None


def test_lengths_by_chance_are_hardly_ever_growth() -> None:
    chance = random.Random(2)
    courses = [peaks_of(*(chance.uniform(5, 10) * GIB for _ in range(64))) for _ in range(2000)]
    assert sum(forecast_limit(course, 80 * GIB) is not None for course in courses) <= 1


def test_at_the_limit_nothing_is_left() -> None:
    forecast = forecast_limit(peaks_of(*(step * GIB for step in range(20))), 10 * GIB)
    assert forecast is not None and forecast.steps == forecast.seconds == 0


def test_steps_that_all_have_one_number_are_no_line() -> None:
    peaks = [StepPeak(1, size * GIB, 0, 0.5) for size in range(20)]
    assert forecast_limit(peaks, 80 * GIB) is None
