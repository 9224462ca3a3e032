"""Which mesh the process groups of rank 0 tell of."""

from __future__ import annotations

import math

import pytest

from ullage.explain.compare.ranks import Axis, find_axes


@pytest.mark.parametrize(
    ("groups", "axes"),
    [
        ([], [(1, 64)]),
        ([range(64)], [(1, 64)]),
        ([range(64), range(8), range(0, 64, 8)], [(1, 8), (8, 8)]),
        ([range(64), range(0, 64, 16)], [(1, 16), (16, 4)]),
        ([range(64), range(0, 32, 2), range(0, 64, 32)], [(1, 2), (2, 16), (32, 2)]),
        ([range(0, 64, 16)], [(1, 16), (16, 4)]),
        ([(0, 5, 6), (3, 4), range(0, 64, 16)], [(1, 16), (16, 4)]),
        ([range(2), range(0, 8, 2), range(0, 64, 8)], [(1, 2), (2, 4), (8, 8)]),
    ],
)  # fmt: skip
def test_axes_are_found_and_cover_the_world(
    groups: list[range], axes: list[tuple[int, int]]
) -> None:
    found = find_axes(groups, 64)
    assert list(found) == [Axis(*axis) for axis in axes]
    assert math.prod(axis.size for axis in found) == 64
