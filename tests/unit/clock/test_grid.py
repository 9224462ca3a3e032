"""Interpolation on grids with holes, against numpy's own and by its invariants."""

from __future__ import annotations

import numpy as np
import pytest

from ullage.clock.grid import fill

AXES = [[1.0, 2.0, 8.0], [16.0, 32.0, 64.0, 100.0]]


def planes(holes: list[tuple[int, int]]) -> np.ndarray:
    """Values that are linear in the logarithms, with holes."""
    logs = [np.log2(axis) for axis in AXES]
    values = 0.5 * logs[0][:, None] - 0.25 * logs[1][None, :]
    for hole in holes:
        values[hole] = np.nan
    return values


def test_a_measured_shape_is_met_exactly() -> None:
    values = np.random.default_rng(0).normal(size=(3, 4))
    grid = fill(AXES, values)
    for (row, column), value in np.ndenumerate(values):
        assert grid.at([AXES[0][row], AXES[1][column]]) == (value, 0.0)


def test_a_power_law_is_met_between_shapes_and_in_holes() -> None:
    grid = fill(AXES, planes([(1, 1), (1, 2)]))
    for point in ([3.0, 50.0], [2.0, 32.0], [2.0, 64.0]):
        expected = 0.5 * np.log2(point[0]) - 0.25 * np.log2(point[1])
        assert grid.at(point).value == pytest.approx(expected)
        assert grid.at(point).outside == 0


def test_one_axis_interpolates_as_numpy_does() -> None:
    axis, values = [1.0, 3.0, 7.0, 50.0], np.array([0.1, -0.4, 2.0, 0.7])
    grid = fill([axis], values)
    for point in (1.5, 4.0, 30.0):
        expected = np.interp(np.log2(point), np.log2(axis), values)
        assert grid.at([point]).value == pytest.approx(expected)


def test_outside_the_edge_holds_and_the_distance_is_told() -> None:
    grid = fill(AXES, planes([]))
    assert grid.at([32.0, 8.0]) == (grid.at([8.0, 16.0]).value, pytest.approx(3.0))


def test_a_hole_at_the_edge_counts_as_outside() -> None:
    grid = fill(AXES, planes([(2, 3)]))
    assert grid.at([8.0, 100.0]).outside == 1
    assert grid.at([1.0, 16.0]).outside == 0


def test_the_axis_of_more_weight_decides() -> None:
    values = np.array([[0.0, 1.0, 0.0], [5.0, np.nan, 7.0], [0.0, 3.0, 0.0]])
    axes = [[1.0, 2.0, 4.0], [1.0, 2.0, 4.0]]
    assert fill(axes, values, [1.0, 0.0]).values[1, 1] == pytest.approx(2.0)
    assert fill(axes, values, [0.0, 1.0]).values[1, 1] == pytest.approx(6.0)
    assert fill(axes, values, [3.0, 1.0]).values[1, 1] == pytest.approx(3.0)


def test_nearer_neighbours_count_more() -> None:
    values = np.array([[np.nan, 1.0, np.nan], [0.0, np.nan, 0.0], [np.nan, 1.0, np.nan]])
    wide, narrow = [1.0, 16.0, 256.0], [1.0, 1.1, 1.21]
    assert fill([narrow, wide], values).values[1, 1] > 0.9
    assert fill([wide, narrow], values).values[1, 1] < 0.1
