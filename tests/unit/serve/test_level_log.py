"""The queue and the cache over time."""

from __future__ import annotations

import pytest

from ullage.operate.serve.level_log import LevelLog


def test_an_occupancy_counts_until_the_next_one() -> None:
    levels = LevelLog()
    levels.take(1.0, 0.5)  # a step takes blocks
    levels.note(2.0, 0, 0, 0.0)  # and its requests give them back
    levels.take(8.0, 1.0)
    levels.note(10.0, 1, 3, 0.25)
    assert levels.mean_frac == pytest.approx((1 * 0.5 + 2 * 1.0) / 10)
    assert levels.peak_frac == 1.0
    assert levels.document["levels"]["time_s"] == [2.0, 10.0]
    assert levels.document["levels"]["waiting"] == [0, 3]


def test_nothing_was_in_use_before_the_first() -> None:
    assert LevelLog().mean_frac == 0.0


def test_of_many_rows_some_go_and_the_mean_stays() -> None:
    levels = LevelLog()
    for number in range(100_000):
        levels.note(number / 10, 1, 0, number % 2)
    assert 1000 < len(levels.rows) <= 4096
    assert levels.mean_frac == pytest.approx(0.5, abs=1e-4)
    moments = levels.document["levels"]["time_s"]
    assert moments == sorted(moments) and moments[-1] > 9_900
