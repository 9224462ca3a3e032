"""A step divided among pieces of work that overlap."""

from __future__ import annotations

import random

import pytest
from tests.rows import each

from ullage.clock.exposure import Busy, measure_exposure


def test_a_moment_belongs_to_the_lowest_rank() -> None:
    computation, message = Busy(0.0, 4.0, 0, 0), Busy(2.0, 7.0, 1, 2)
    exposure = measure_exposure([message, computation], 0.0, 10.0)
    assert exposure.busy_s == {0: 4.0, 1: 5.0}
    assert exposure.exposed_s == {0: 4.0, 1: 3.0}
    assert exposure.idle_s == 3.0


def test_computation_that_comes_later_takes_over() -> None:
    message, computation = Busy(0.0, 10.0, 0, 2), Busy(3.0, 5.0, 1, 0)
    exposure = measure_exposure([message, computation], 0.0, 10.0)
    assert exposure.exposed_s == {0: 8.0, 1: 2.0} and exposure.idle_s == 0.0


def test_what_began_before_takes_nothing_of_the_step() -> None:
    exposure = measure_exposure([Busy(-5.0, 2.0, 0, 0)], 0.0, 3.0)
    assert exposure.busy_s == {0: 7.0} and exposure.exposed_s == {0: 2.0} and exposure.idle_s == 1.0


def test_seconds_by_name() -> None:
    exposure = measure_exposure([Busy(0.0, 1.0, 0, 0), Busy(1.0, 3.0, 1, 0)], 0.0, 3.0)
    assert exposure.busy_by({0: "a", 1: "a"}) == {"a": 3.0}
    assert exposure.exposed_by({0: "a", 1: "b"}) == {"a": 1.0, "b": 2.0}


def test_nothing_was_given() -> None:
    assert measure_exposure([], 1.0, 3.0).idle_s == 2.0


@each("seed", range(50))
def test_the_parts_add_up(seed: int) -> None:
    """Against a count of small pieces of time."""
    draw = random.Random(seed)
    pieces = []
    for row in range(draw.randrange(1, 12)):
        start = draw.randrange(-3, 20)
        pieces.append(
            Busy(float(start), float(start + draw.randrange(0, 8)), row, draw.randrange(3))
        )
    exposure = measure_exposure(pieces, 0.0, 30.0)
    expected = dict.fromkeys((piece.row for piece in pieces), 0.0)
    for moment in range(30):
        there = [piece for piece in pieces if piece.start_s <= moment < piece.end_s]
        if there:
            expected[min(there, key=lambda piece: (piece.rank, piece.start_s, piece.row)).row] += (
                1.0
            )
    found = {row: exposure.exposed_s.get(row, 0.0) for row in expected}
    assert found == pytest.approx(expected)
    assert sum(found.values()) + exposure.idle_s == pytest.approx(30.0)
