"""Kernels on several streams take together as long as one after the other."""

from __future__ import annotations

import pytest

from ullage.clock.sharing import Sharing


def test_alone_a_kernel_is_as_fast_as_alone() -> None:
    sharing = Sharing()
    assert sharing.place(0, 0.0, 5.0) == 5.0
    assert sharing.place(0, 5.0, 5.0) == 10.0
    assert sharing.place(1, 10.0, 2.0) == 12.0


def test_the_later_one_takes_what_the_other_takes_beside_it() -> None:
    sharing = Sharing()
    sharing.place(0, 0.0, 10.0)
    assert sharing.place(1, 5.0, 10.0) == 20.0  # 5 beside the first


def test_a_gap_is_used() -> None:
    sharing = Sharing()
    sharing.place(0, 0.0, 2.0)
    sharing.place(0, 10.0, 2.0)
    assert sharing.place(1, 4.0, 3.0) == 7.0
    assert sharing.place(1, 8.0, 3.0) == 13.0


@pytest.mark.parametrize("num_streams", [2, 3])
def test_no_work_is_lost(num_streams: int) -> None:
    sharing = Sharing()
    ends = [0.0] * num_streams
    for _ in range(20):
        for lane in range(num_streams):
            ends[lane] = sharing.place(lane, ends[lane], 1.0)
    assert max(ends) >= 20 * num_streams * 0.99
