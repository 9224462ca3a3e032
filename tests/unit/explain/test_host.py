"""Host memory of a run: processes that were there at once add up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ullage.explain.host import host_memory
from ullage.log.model import Record

Make = Callable[..., Record]


def of(make_record: Make, *processes: tuple[float, float, int], **changes: Any) -> tuple[int, ...]:
    """Host memory of processes given as (start, end, peak)."""
    return host_memory(
        [
            make_record("+4", started_s=start, ended_s=end, host_peak_bytes=peak, **changes)
            for start, end, peak in processes
        ]
    )


def test_no_process_has_no_memory() -> None:
    assert host_memory([]) == (0,) * 6


def test_processes_that_are_there_at_once_add_up(make_record: Make) -> None:
    assert of(make_record, (1.0, 5.0, 100), (2.0, 4.0, 70), (3.0, 9.0, 30))[:3] == (200,) * 3


def test_processes_one_after_the_other_do_not(make_record: Make) -> None:
    assert of(make_record, (1.0, 2.0, 100), (3.0, 4.0, 70), (5.0, 6.0, 130))[:3] == (130,) * 3


def test_the_crowd_counts_not_the_chain(make_record: Make) -> None:
    """The first and the last never meet."""
    assert of(make_record, (1.0, 3.0, 100), (2.0, 5.0, 70), (4.0, 6.0, 60))[:3] == (170,) * 3


def test_what_a_gpu_needs_is_no_less_than_what_was_taken_here_or_pinned(make_record: Make) -> None:
    assert of(make_record, (1.0, 2.0, 100), host_needed_bytes=300) == (100, 300, 300, 0, 0, 0)
    assert of(make_record, (1.0, 2.0, 100), host_needed_bytes=90) == (100, 100, 100, 0, 0, 0)
    assert of(make_record, (1.0, 2.0, 100), pinned_peak_bytes=400) == (100, 400, 400, 400, 400, 400)


def test_copies_that_are_done_at_once_need_less_pinned_memory(make_record: Make) -> None:
    pinned = {"pinned_peak_bytes": 400, "pinned_low_peak_bytes": 90, "pinned_asked_peak_bytes": 60}
    one = of(make_record, (1.0, 2.0, 100), host_needed_bytes=450, **pinned)
    assert one == (100, 140, 450, 90, 400, 60)
    two = of(make_record, (1.0, 2.0, 100), (1.5, 2.0, 100), host_needed_bytes=450, **pinned)
    assert two == tuple(2 * size for size in one)
