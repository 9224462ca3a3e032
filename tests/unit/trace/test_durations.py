"""Percentiles of counted durations are those of the durations themselves, within the bound."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage.log.durations import NUM_BINS, RELATIVE_ERROR, Durations, bin_of, seconds_of, sum_up

TIMES = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=200)
SHARES = st.sampled_from((0.0, 0.1, 0.5, 0.9, 0.99, 1.0))


def count(times: list[float]) -> Durations:
    return Durations(Counter(map(bin_of, times)))


@given(TIMES, SHARES)
def test_a_percentile_is_within_the_stated_error(times: list[float], share: float) -> None:
    exact = sorted(times)[max(1, math.ceil(share * len(times))) - 1]
    percentile = count(times).percentile(share)
    assert percentile is not None
    assert abs(percentile / exact - 1) <= RELATIVE_ERROR + 1e-9
    assert pytest.approx(0.0109, abs=1e-4) == RELATIVE_ERROR, "1.1 %, as documents say"


@given(TIMES, TIMES)
def test_counts_of_parts_are_those_of_the_whole(part: list[float], rest: list[float]) -> None:
    whole = count(part + rest)
    assert sum_up((count(part), count(rest))).counts == whole.counts
    assert whole.without(count(part)).counts == count(rest).counts


@pytest.mark.parametrize(
    ("seconds", "number"),
    [(0.0, 0), (-1.0, 0), (math.nan, 0), (9e-7, 0), (1e-6, 1), (1e12, NUM_BINS - 1),
     (math.inf, NUM_BINS - 1)],
)  # fmt: skip
def test_every_time_has_a_bin(seconds: float, number: int) -> None:
    assert bin_of(seconds) == number


def test_a_longer_time_has_no_earlier_bin() -> None:
    middles = [seconds_of(number) for number in range(1, NUM_BINS)]
    assert middles == sorted(middles)
    assert [bin_of(middle) for middle in middles] == list(range(1, NUM_BINS))
    assert Durations({}).percentile(0.5) is None
