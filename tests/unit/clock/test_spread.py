"""The interval of a step, and the wait for the slowest of its ranks."""

from __future__ import annotations

import statistics

import numpy as np
import pytest

from ullage.clock.spread import Spread, slowest_of
from ullage.clock.step_time import Interval

STEP = Interval(0.8, 1.0, 1.3)


@pytest.mark.parametrize("num_ranks", [2, 8, 128])
def test_the_slowest_of_some_gpus_is_the_expected_largest_deviate(num_ranks: int) -> None:
    draws = np.random.default_rng(0).normal(0.0, 0.08 / 5.396, (20_000, num_ranks))
    assert slowest_of(num_ranks) == pytest.approx(draws.max(axis=1).mean(), rel=0.06)


def test_a_gpu_alone_waits_for_none() -> None:
    assert slowest_of(1) == 0.0
    alone = Spread(1.0, 1.0, 1.0, 1)
    assert alone.of(STEP).s == alone.extremes(STEP).s == STEP.s


def test_more_ranks_wait_longer_and_only_for_what_is_computed() -> None:
    waits = [Spread(1.0, 1.0, 1.0, ranks).of(STEP).s for ranks in (1, 2, 8, 64, 128)]
    assert waits == sorted(waits)
    assert waits[2] == pytest.approx(1.021, abs=0.002)
    assert waits[4] == pytest.approx(1.038, abs=0.002)
    half = Spread(1.0, 1.0, 0.5, 128).of(STEP).s
    assert half - 1 == pytest.approx((waits[4] - 1) / 2)


def test_the_interval_holds_gpus_that_are_all_alike_and_the_slowest_of_the_published_range() -> (
    None
):
    exact = Interval(1.0, 1.0, 1.0)
    low_s, likely_s, high_s = Spread(1.0, 1.0, 1.0, 8).of(exact)
    assert low_s == pytest.approx(0.96)
    assert high_s == pytest.approx(1.08)
    assert low_s < 1.0 < likely_s < high_s


def test_the_extremes_have_all_errors_in_one_direction() -> None:
    low_s, likely_s, high_s = Spread(0.3, 0.3, 1.0, 8).extremes(STEP)
    assert low_s == STEP.low_s
    assert statistics.fmean([high_s / STEP.high_s, likely_s / STEP.s]) == pytest.approx(likely_s)
