"""Kernels on several streams take together as long as one after the other."""

from __future__ import annotations

import pytest

from ullage.clock.sharing import Sharing


def placed(sharing: Sharing, lane: int, start_s: float, taken_s: float) -> float:
    """The end of a piece of work; what others lose is noted."""
    end_s, lost = sharing.place(lane, start_s, taken_s)
    for other, seconds in lost.items():
        sharing.extend(other, seconds)
    return end_s


def test_alone_a_kernel_is_as_fast_as_alone() -> None:
    sharing = Sharing()
    assert placed(sharing, 0, 0.0, 5.0) == 5.0
    assert placed(sharing, 0, 5.0, 5.0) == 10.0
    assert placed(sharing, 1, 10.0, 2.0) == 12.0


def test_both_get_half_until_the_first_ends() -> None:
    sharing = Sharing()
    placed(sharing, 0, 0.0, 10.0)
    end_s, lost = sharing.place(1, 5.0, 10.0)
    assert end_s == 20.0 and lost == {0: 5.0}  # the first does its other half until 15


def test_a_short_kernel_does_not_wait_for_all_that_another_stream_was_given() -> None:
    sharing = Sharing()
    for number in range(100):
        placed(sharing, 0, float(number), 1.0)
    end_s, lost = sharing.place(1, 5.0, 2.0)
    assert end_s == pytest.approx(9.0) and lost == {0: pytest.approx(2.0)}


def test_three_get_a_third() -> None:
    sharing = Sharing()
    assert placed(sharing, 0, 0.0, 2.0) == 2.0
    assert placed(sharing, 1, 0.0, 2.0) == 4.0
    end_s, lost = sharing.place(2, 0.0, 2.0)
    assert end_s == pytest.approx(6.0) and lost == {0: pytest.approx(2.0), 1: pytest.approx(2.0)}


def test_a_gap_is_used() -> None:
    sharing = Sharing()
    placed(sharing, 0, 0.0, 2.0)
    placed(sharing, 0, 10.0, 2.0)
    assert placed(sharing, 1, 4.0, 3.0) == 7.0
    end_s, lost = sharing.place(1, 8.0, 3.0)
    assert end_s == 12.0 and lost == {0: 1.0}  # 8 to 10 alone, the last second beside the other


def test_a_pause_makes_up_for_what_a_stream_loses() -> None:
    sharing = Sharing()
    placed(sharing, 0, 0.0, 2.0)
    placed(sharing, 0, 10.0, 2.0)
    end_s, lost = sharing.place(1, 0.0, 1.0)
    assert end_s == 2.0 and not lost
    placed(sharing, 0, 12.5, 2.0)
    end_s, lost = sharing.place(2, 10.0, 2.0)
    assert end_s == pytest.approx(14.0) and lost == {0: pytest.approx(1.5)}


@pytest.mark.parametrize("num_streams", [2, 3])
def test_no_work_is_lost(num_streams: int) -> None:
    sharing = Sharing()
    ends = [0.0] * num_streams
    for _ in range(20):
        for lane in range(num_streams):
            ends[lane] = placed(sharing, lane, ends[lane], 1.0)
    assert max(ends) >= 20 * num_streams * 0.99
