"""Both ends of what is reserved where Inductor timed kernels, and where the report shows them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ullage.answers.text import render
from ullage.explain.basis import BasisKind
from ullage.explain.program import Program
from ullage.explain.reserved import Tuning, find_tuning
from ullage.explain.run import RunReport, explain_run
from ullage.explain.verdict import Verdict
from ullage.facts.gpus.catalog import Gpu
from ullage.ground.protocol.plain import plain
from ullage.log.bounds import OtherPeaks, Otherwise, Peaks
from ullage.log.model import Record
from ullage.verbs.run.text import run_blocks

Make = Callable[..., Record]
# 70 bytes at once, 40 at the end: 70 are reserved.
SCRIPT = "+30 +40 -30 +30 -30"


def warm_cache(allocated: int, *reserved: int, device: int = 0) -> OtherPeaks:
    """Without nine blocks of up to 30 bytes."""
    peaks = tuple(Peaks(each, allocated) for each in reserved)
    return OtherPeaks(Otherwise.TUNING, device, peaks, 9, 30)


def timed(make_record: Make, *warm: OtherPeaks, num_timed: int = 5) -> Record:
    return replace(make_record(SCRIPT, num_timed=num_timed), otherwise=warm)


def explain(record: Record, program: Program, gpu: Gpu) -> RunReport:
    return explain_run(
        [(record, None)], program=program, torch="2.15.0", gpu=gpu, is_unlimited=False
    )


@pytest.mark.parametrize(
    ("warm", "expected"),
    [
        (warm_cache(60, 45), Tuning(45, 70, 9, 30, 60)),
        (warm_cache(70, 80, 90), Tuning(70, 90, 9, 30, 70)),  # fragmentation, otherwise
        (warm_cache(60), Tuning(70, 70, None, None, 70)),
        (warm_cache(60, 45, device=1), Tuning(70, 70, 0, 0, 70)),
    ],
)
def test_the_ends_are_those_of_the_run_and_of_its_replay(
    make_record: Make, warm: OtherPeaks, expected: Tuning
) -> None:
    record = timed(make_record, warm)
    assert find_tuning(record, record.devices[0]) == expected


def test_where_nothing_was_timed_there_is_one_end(make_record: Make) -> None:
    record = timed(make_record, warm_cache(60, 45), num_timed=0)
    assert find_tuning(record, record.devices[0]) == Tuning(70, 70, 0, 0, 70)


def test_without_a_snapshot_no_less_is_reserved_than_was_allocated(make_record: Make) -> None:
    record = timed(make_record)
    totals = replace(record.devices[0], peak_reserved_bytes=100)
    assert find_tuning(record, totals) == Tuning(70, 100, None, None, 70)


def test_the_report_has_the_interval_and_says_what_it_hangs_on(
    make_record: Make, program: Program, small_gpu: Gpu
) -> None:
    report = explain(timed(make_record, warm_cache(60, 45)), program, small_gpu)
    (device,) = report.devices
    assert device.peak_used_bytes == 70 + 120
    assert device.headroom.high_bytes == 1000 - 80 - 45
    assert report.allocator_basis.kind is BasisKind.ASSUMED
    allocated, reserved = report.allocator_basis.assumptions
    assert (allocated.low_bytes, allocated.high_bytes, allocated.count) == (60, 70, 9)
    assert (reserved.low_bytes, reserved.high_bytes, reserved.count) == (45, 70, 9)
    shown = plain(report)["devices"][0]
    assert (shown["peak_reserved_low_bytes"], shown["peak_reserved_high_bytes"]) == (45, 70)
    assert (shown["num_timing_blocks"], shown["peak_allocated_low_bytes"]) == (9, 60)
    assert "a warm cache of Inductor's -25 B" in render(run_blocks(report), full=True)


def test_with_asynchronous_work_the_interval_holds_all_ends(
    make_record: Make, program: Program, small_gpu: Gpu
) -> None:
    record = timed(make_record, warm_cache(60, 45, 90))
    once = OtherPeaks(Otherwise.COMPLETION, 0, (Peaks(50, 70),), 2, 30)
    events = replace(record, num_not_yet=1, otherwise=(*record.otherwise, once))
    (device,) = explain(events, program, small_gpu).devices
    assert (device.reserved.low_bytes, device.reserved.high_bytes) == (45, 90)
    headroom = device.headroom
    assert (headroom.completion_less_bytes, headroom.tuning_less_bytes) == (40, 5)


def test_a_program_that_fits_with_a_cold_cache_alone_does_not_fit(
    make_record: Make, program: Program, small_gpu: Gpu
) -> None:
    tight = replace(small_gpu, total_bytes=200, total_low_bytes=200, total_high_bytes=200)
    record = timed(make_record, warm_cache(70, 95))
    assert explain(replace(record, otherwise=()), program, tight).verdict is Verdict.FITS
    assert explain(record, program, tight).verdict is Verdict.OUT_OF_MEMORY
