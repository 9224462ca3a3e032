"""The clock's seconds for the blocks of a program, divided as the roofline says."""

from __future__ import annotations

import numpy as np
import pytest

from ullage.clock.step_time import Interval
from ullage.plan.costs.clocked import ClockTimes, Timed
from ullage.plan.costs.roofline import Seconds

ROOFLINE = Seconds(np.array([0.1, 0.3]), 0.5)
CLOCK = ClockTimes(ROOFLINE, 1.0)


def timed(seconds: float, num_tokens: int = 0) -> Timed:
    return Timed(Interval(0.8 * seconds, seconds, 1.5 * seconds), num_tokens)


def test_the_unchanged_program_takes_what_the_clock_says() -> None:
    seconds = CLOCK.seconds(ROOFLINE, timed(1.0))
    assert seconds.step == 1.0
    assert seconds.blocks == pytest.approx([0.2, 0.6])


def test_what_a_technique_adds_is_divided_as_the_roofline_divides_it() -> None:
    """The roofline adds 0.1 and 0.3, the clock 0.6 in all."""
    seconds = CLOCK.seconds(Seconds(np.array([0.2, 0.6]), 0.9), timed(1.6))
    assert seconds.step == pytest.approx(1.6)
    assert seconds.blocks == pytest.approx([0.2 + 0.15, 0.6 + 0.45])


def test_all_blocks_under_a_technique_take_what_its_run_took() -> None:
    for step_s in (0.7, 1.0, 1.3):
        seconds = CLOCK.seconds(Seconds(np.array([0.05, 0.45]), 0.6), timed(step_s))
        extra = seconds.blocks - CLOCK.seconds(ROOFLINE, timed(1.0)).blocks
        assert extra.sum() == pytest.approx(step_s - 1.0)


def test_what_the_roofline_sees_no_cause_of_is_divided_equally() -> None:
    seconds = CLOCK.seconds(ROOFLINE, timed(1.2))
    assert seconds.blocks == pytest.approx([0.3, 0.7])


def test_the_same_work_takes_the_same_time() -> None:
    """A setting of the allocator is no slower by a synchronisation more."""
    assert CLOCK.seconds(ROOFLINE, timed(1.0004)).step == 1.0


def test_a_run_without_a_whole_step_has_the_rooflines_seconds_in_proportion() -> None:
    seconds = CLOCK.seconds(Seconds(np.array([0.2, 0.3]), 0.75), None)
    assert seconds.step == pytest.approx(1.5)
    assert seconds.blocks == pytest.approx([0.4, 0.6])


def test_without_a_time_of_the_unchanged_program_the_roofline_stays() -> None:
    clock = ClockTimes(ROOFLINE, 0.0)
    other = Seconds(np.array([0.2, 0.3]), 0.75)
    assert not clock.is_timed
    assert clock.seconds(other, timed(9.0)) is other


def test_a_program_without_blocks_has_times_too() -> None:
    nothing = np.zeros(0)
    clock = ClockTimes(Seconds(nothing, 0.5), 1.0)
    assert clock.seconds(Seconds(nothing, 0.6), timed(1.3)).step == pytest.approx(1.3)


def test_what_recording_changes_is_taken_away_at_each_bound() -> None:
    corrected = timed(2.2, num_tokens=8).corrected(timed(1.1), timed(1.0))
    assert corrected.step == pytest.approx((1.6, 2.0, 3.0))
    assert corrected.num_tokens == 8


def test_several_steps_that_do_one_together_add_up() -> None:
    assert timed(1.0, 8).times(2) == Timed(Interval(1.6, 2.0, 3.0), 8)
