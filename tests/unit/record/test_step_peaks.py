"""Any number of steps in bounded memory, and no peak is lost."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from ullage.record.steps.step_peaks import StepPeaks


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), max_size=200))
def test_rows_hold_every_step_and_its_highest_bytes(steps: list[tuple[int, int]]) -> None:
    peaks = StepPeaks(max_rows=8)
    for allocated, reserved in steps:
        peaks.add(allocated, reserved, 0.5)
    rows = peaks.rows()
    assert peaks.num_steps == len(steps)
    assert len(rows) <= 8
    ends = list(itertools.accumulate((row.num_steps for row in rows), initial=0))
    assert ends[-1] == len(steps)
    for row, begin, end in zip(rows, ends, ends[1:], strict=False):
        part = steps[begin:end]
        assert row.first == begin
        assert row.allocated_bytes == max(allocated for allocated, _ in part)
        assert row.reserved_bytes == max(reserved for _, reserved in part)
        assert row.seconds == 0.5 * len(part)


def test_a_day_at_ten_steps_a_second_has_as_many_rows_as_are_allowed() -> None:
    peaks = StepPeaks(max_rows=64)
    for number in range(864_000):
        peaks.add(number, number, 0.1)
    rows = peaks.rows()
    assert 32 <= len(rows) <= 64
    assert rows[-1].allocated_bytes == 863_999
