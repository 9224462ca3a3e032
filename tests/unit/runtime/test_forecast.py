"""Forecasts of a step's memory: upper ends that hold where the need is a sum of the sizes."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from ullage.act.guard.adapting.forecast import Forecast, Sizes, _nonnegative

MIB = 1 << 20
ROWS = 8


def sizes_of(length: int) -> Sizes:
    """Of (8, length) tokens."""
    return float(ROWS * length), float(ROWS * length * length)


def linear(length: int) -> int:
    """What a model with fused attention needs."""
    return 200 * MIB + ROWS * length * 500_000


def quadratic(length: int) -> int:
    """What one needs that writes its scores."""
    return 200 * MIB + ROWS * length * 100_000 + ROWS * length * length * 400


def with_floor(length: int) -> int:
    """The same with an optimizer whose own need is above that of short batches."""
    return max(3 << 30, linear(length))


def measured(need: Callable[[int], int], lengths: list[int]) -> Forecast:
    """A forecast that has these lengths."""
    forecast = Forecast()
    for length in lengths:
        forecast.add(sizes_of(length), need(length))
    return forecast


def upper(forecast: Forecast, length: int) -> int:
    """The forecast for a length."""
    need = forecast.upper(sizes_of(length))
    assert need is not None
    return need.num_bytes


NEEDS = pytest.mark.parametrize("need", [linear, quadratic, with_floor])


def test_a_forecast_follows_what_was_added_since() -> None:
    forecast = measured(linear, [100])
    before = upper(forecast, 200)
    forecast.add(sizes_of(200), linear(200))
    assert upper(forecast, 200) == linear(200) < before
    forecast.add_failure(sizes_of(200), 2 * linear(200))
    assert upper(forecast, 200) > 2 * linear(200)


def test_nothing_is_forecast_before_the_first_step() -> None:
    assert Forecast().upper(sizes_of(512)) is None


def test_nothing_is_known_of_a_size_that_was_always_0() -> None:
    forecast = Forecast()
    forecast.add((0.0, 0.0), 1 << 20)
    assert forecast.upper(sizes_of(512)) is None
    assert forecast.upper((0.0, 0.0)) is not None


@NEEDS
def test_a_forecast_is_never_below_the_need(need: Callable[[int], int]) -> None:
    """Of 40 streams with a long tail, from the second step on."""
    for seed in range(40):
        source = random.Random(seed)
        forecast = Forecast()
        for step in range(40):
            length = 64 * max(1, min(64, round(source.lognormvariate(2.2, 0.8))))
            if step:
                assert upper(forecast, length) >= need(length), (seed, step)
            forecast.add(sizes_of(length), need(length))


@NEEDS
def test_a_forecast_is_monotone(need: Callable[[int], int]) -> None:
    forecast = measured(need, [512, 1024, 1536, 1900, 1984])
    forecasts = [upper(forecast, length) for length in range(64, 8192, 64)]
    assert forecasts == sorted(forecasts)


def test_a_line_foresees_twice_the_length_within_a_tenth() -> None:
    forecast = measured(linear, [512, 640, 1024, 1536, 2048])
    assert linear(4096) <= upper(forecast, 4096) <= 1.1 * linear(4096)


def test_a_square_foresees_twice_the_length_within_a_tenth() -> None:
    forecast = measured(quadratic, [512, 640, 1024, 1536, 2048])
    assert quadratic(4096) <= upper(forecast, 4096) <= 1.1 * quadratic(4096)


def test_a_floor_does_not_flatten_the_line() -> None:
    forecast = measured(with_floor, [64, 128, 256, 512, 640, 1024, 1536, 2048])
    assert with_floor(4096) <= upper(forecast, 4096) <= 1.1 * with_floor(4096)


def test_lengths_near_each_other_allow_the_steepest_line() -> None:
    """From 1,900 to 2,000 tokens a line and a square are the same within a hundredth."""
    forecast = measured(linear, [1000, 1900, 1950, 2000])
    for length in (1900, 1950, 2000):
        forecast.add(sizes_of(length), quadratic(length))
    near = measured(quadratic, [1800, 1900, 1950, 2000])
    assert upper(near, 4000) >= quadratic(4000)


def test_few_batches_are_taken_to_grow_in_proportion_to_the_square() -> None:
    forecast = measured(linear, [512, 1024])
    need = forecast.upper(sizes_of(2048))
    assert need is not None
    assert (need.num_bytes, need.basis) == (pytest.approx(4 * linear(1024)), "proportional")


def test_a_larger_batch_bounds_a_smaller_one() -> None:
    need = measured(linear, [512, 2048]).upper(sizes_of(1024))
    assert need is not None
    assert (need.num_bytes, need.basis) == (linear(2048), "measured")


def test_a_failure_lifts_larger_batches_and_no_smaller_ones() -> None:
    forecast = measured(linear, [512, 640, 1024, 1536])
    before = upper(forecast, 1024)
    forecast.add_failure(sizes_of(1600), 40 << 30)
    assert upper(forecast, 1600) > 40 << 30
    assert upper(forecast, 2048) > 40 << 30
    assert upper(forecast, 1024) == before


def test_a_batch_that_fits_after_all_lifts_the_failure() -> None:
    forecast = measured(linear, [512, 640, 1024, 1536])
    forecast.add_failure(sizes_of(1600), linear(1600))
    forecast.add(sizes_of(1600), linear(1600))
    assert upper(forecast, 1600) == linear(1600)


def test_a_provisional_step_is_forgotten_with_the_next() -> None:
    forecast = Forecast()
    forecast.add(sizes_of(512), 100 << 30, is_provisional=True)
    assert upper(forecast, 512) == 100 << 30
    forecast.add(sizes_of(1024), linear(1024))
    assert upper(forecast, 512) == linear(1024)
    assert forecast.num_sizes == 1


def test_two_inputs_have_slopes_of_their_own() -> None:
    """An encoder whose tokens cost ten times those of the decoder."""

    def need(source: int, target: int) -> int:
        return 100 * MIB + source * 1_000_000 + target * 100_000

    forecast = Forecast()
    draw = random.Random(1)
    for _ in range(30):
        source, target = draw.randrange(100, 1000), draw.randrange(100, 1000)
        forecast.add((source, source**2, target, target**2), need(source, target))
    for source, target in ((1500, 200), (200, 1500)):
        result = forecast.upper((source, source**2, target, target**2))
        assert result is not None
        assert need(source, target) <= result.num_bytes <= 1.25 * need(source, target)


def test_the_points_are_bounded_and_the_ends_stay() -> None:
    forecast = measured(linear, [*range(8, 8 * 600, 8)])
    assert forecast.num_sizes == 64
    assert forecast.has_done(sizes_of(8 * 599))
    assert linear(4096) <= upper(forecast, 4096) <= 1.02 * linear(4096)


def test_nonnegative_least_squares_is_the_best_of_all_subsets() -> None:
    """The oracle tries every set of columns."""
    for seed in range(100):
        source = np.random.default_rng(seed)
        columns, values = source.random((9, 4)), source.standard_normal(9)
        result = _nonnegative(columns, values)
        assert (result >= 0).all()
        assert residual(columns, values, result) == pytest.approx(best_residual(columns, values))


def residual(columns: np.ndarray, values: np.ndarray, result: np.ndarray) -> float:
    """The sum of squares that is left."""
    return float(((values - columns @ result) ** 2).sum())


def best_residual(columns: np.ndarray, values: np.ndarray) -> float:
    """The least over all sets of columns whose solution has no negative coefficient."""
    best = float((values**2).sum())
    for number in range(1, 1 << columns.shape[1]):
        chosen = [each for each in range(columns.shape[1]) if number >> each & 1]
        part = np.linalg.lstsq(columns[:, chosen], values, rcond=None)[0]
        if (part >= 0).all():
            best = min(best, residual(columns[:, chosen], values, part))
    return best
