"""Any number of steps in bounded memory, and no figure is lost."""

from __future__ import annotations

import itertools
import operator

from hypothesis import given
from hypothesis import strategies as st

from ullage.players.inside.steps.step_rows import StepRows


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), max_size=200))
def test_rows_hold_every_step_and_its_highest_figures(steps: list[tuple[int, int]]) -> None:
    rows_of = StepRows((max, max, operator.add), max_rows=8)
    for allocated, reserved in steps:
        rows_of.add(allocated, reserved, 0.5)
    rows = rows_of.rows()
    assert rows_of.num_steps == len(steps)
    assert len(rows) <= 8
    ends = list(itertools.accumulate((int(row[1]) for row in rows), initial=0))
    assert ends[-1] == len(steps)
    for row, begin, end in zip(rows, ends, ends[1:], strict=False):
        part = steps[begin:end]
        assert row == [begin, len(part), *map(max, zip(*part, strict=True)), 0.5 * len(part)]


def test_a_day_at_ten_steps_a_second_has_as_many_rows_as_are_allowed() -> None:
    peaks = StepRows((max, max, operator.add), max_rows=64)
    for number in range(864_000):
        peaks.add(number, number, 0.1)
    rows = peaks.rows()
    assert 32 <= len(rows) <= 64
    assert rows[-1][2] == 863_999
