"""Growth per step: what rises with each step, whatever the size of its batch."""

from __future__ import annotations

import random

import pytest

from ullage.log.growth import find_trend


def rate_of(*levels: float) -> float:
    """The growth of levels; 0 where there is none."""
    trend = find_trend(levels)
    return 0 if trend is None else trend.rate


@pytest.mark.parametrize(
    ("levels", "growth"),
    [
        ((100, 112, 124), 12),
        ((5, 100, 112, 124), 12),
        ((5, 100, 112, 124, 136), 12),
        ((5, 100, 112, 124, 136, 148), 12),
        ((5, 100, 100), 0),
        ((5, 100, 112), 0),  # a single increase, after what the first step has set up
        ((100, 112, 125), 0),
        ((900, 100, 100, 100, 100), 0),
        ((5, 300, 100, 200, 100, 400), 0),  # batches of different sizes
        ((5, 100, 100, 100, 100, 180, 180, 180, 180), 0),  # once
        ((5, 200, 100, 100), 0),
        ((10, 12, 14, 16, 18, 20, 20, 20, 20, 20, 20, 20), 0),  # a cache that has filled
        ((0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4), 0),  # freed in turns
        ((5, 100), 0),
        ((), 0),
    ],
)
def test_growth_is_the_rise_of_every_part_of_the_steps(
    levels: tuple[int, ...], growth: int
) -> None:
    assert rate_of(*levels) == pytest.approx(growth)


def test_what_is_added_now_and_then_counts_in_part() -> None:
    stairs = [100 + 80 * (step // 4) for step in range(40)]
    assert rate_of(*stairs) == pytest.approx(20, rel=0.05)


def test_a_step_of_several_requests_counts_as_so_many() -> None:
    """Four after each step but the first: 24 bytes more a step are 6 a request."""
    levels = (5, 100, 124, 148, 172)
    trend = find_trend(levels, (0, 4, 8, 12, 16))
    assert (rate_of(*levels), trend and trend.rate) == (24, 6)


@pytest.mark.parametrize("count", [3, 4, 6, 12, 64])
def test_levels_by_chance_do_not_grow(count: int) -> None:
    chance = random.Random(count)
    courses = [[chance.uniform(5, 10) for _ in range(count)] for _ in range(2000)]
    assert sum(rate_of(*course) > 0 for course in courses) <= 1
