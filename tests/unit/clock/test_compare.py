"""Which of two steps is faster: sure only where all costs say the same."""

from __future__ import annotations

import pytest

from ullage.clock.compare import Order, compare
from ullage.clock.step_time import Interval

STEP = Interval(0.8, 1.0, 1.4)


def test_a_difference_that_is_shared_is_sure_though_the_intervals_overlap() -> None:
    slower = compare(Interval(0.88, 1.1, 1.54), STEP)
    assert slower.order is Order.SLOWER
    assert (slower.least, slower.likely, slower.most) == pytest.approx((0.1, 0.1, 0.1))
    assert compare(STEP, Interval(0.88, 1.1, 1.54)).order is Order.FASTER


def test_intervals_apart_are_sure() -> None:
    assert compare(Interval(1.5, 1.6, 1.7), STEP).order is Order.SLOWER
    assert compare(Interval(0.1, 0.2, 0.3), STEP).order is Order.FASTER


def test_where_the_ends_disagree_neither_is_faster() -> None:
    """Slower if kernels are slow, and faster if the host is."""
    unsure = compare(Interval(0.7, 1.1, 1.6), STEP)
    assert unsure.order is Order.ALIKE
    assert unsure.least < 0 < unsure.likely < unsure.most


def test_what_the_place_of_tensors_changes_is_no_difference() -> None:
    assert compare(STEP, STEP) == (Order.ALIKE, 0.0, 0.0, 0.0)
    almost = Interval(*(1.015 * seconds for seconds in STEP))
    assert compare(almost, STEP).order is Order.ALIKE
    more = Interval(*(1.03 * seconds for seconds in STEP))
    assert compare(more, STEP).order is Order.SLOWER


@pytest.mark.parametrize("step", [Interval(0.7, 0.9, 1.3), Interval(0.9, 1.3, 1.5), STEP])
def test_two_steps_compare_alike_both_ways(step: Interval) -> None:
    opposite = {Order.FASTER: Order.SLOWER, Order.SLOWER: Order.FASTER, Order.ALIKE: Order.ALIKE}
    assert compare(step, STEP).order is opposite[compare(STEP, step).order]


def test_a_step_without_time_is_compared_with_nothing() -> None:
    assert compare(STEP, Interval(0.0, 0.0, 0.0)).order is Order.ALIKE
