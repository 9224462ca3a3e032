"""Both ends of what is reserved, and what they do to the room that is left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from ullage.answers.text import render
from ullage.explain.basis import BasisKind
from ullage.explain.program import Program
from ullage.explain.reserved import Completion, find_completion
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


def at_once(reserved: int | None, device: int = 0) -> OtherPeaks:
    """Two blocks of 30 bytes together were held back."""
    peaks = () if reserved is None else (Peaks(reserved, 70),)
    return OtherPeaks(Otherwise.COMPLETION, device, peaks, 2, 30)


def held(make_record: Make, *once: OtherPeaks, num_not_yet: int = 5) -> Record:
    return replace(make_record(SCRIPT, num_not_yet=num_not_yet), otherwise=once)


def explain(record: Record, program: Program, gpu: Gpu) -> RunReport:
    return explain_run(
        [(record, None)], program=program, torch="2.15.0", gpu=gpu, is_unlimited=False
    )


@pytest.mark.parametrize(
    ("once", "expected"),
    [
        (at_once(45), Completion(45, 70, 2, 30)),
        (at_once(80), Completion(70, 80, 2, 30)),  # fragmentation the other way round
        (at_once(None), Completion(70, 70, 2, 30)),  # no less than was allocated: 70
        (at_once(45, device=1), Completion(70, 70, None, None)),
    ],
)
def test_the_ends_are_those_of_the_run_and_of_its_replay(
    make_record: Make, once: OtherPeaks, expected: Completion
) -> None:
    record = held(make_record, once)
    assert find_completion(record, record.devices[0]) == expected


def test_where_the_allocator_was_never_told_to_wait_there_is_one_end(make_record: Make) -> None:
    record = held(make_record, at_once(45), num_not_yet=0)
    assert find_completion(record, record.devices[0]) == Completion(70, 70, 0, 0)


def test_without_a_replay_no_less_is_reserved_than_was_allocated(make_record: Make) -> None:
    record = held(make_record)
    totals = replace(record.devices[0], peak_reserved_bytes=100)
    assert find_completion(record, totals) == Completion(70, 100, None, None)


@pytest.mark.parametrize("other", [45, 80])
def test_the_verdict_goes_by_the_upper_end_and_the_interval_reaches_to_the_lower(
    make_record: Make, program: Program, small_gpu: Gpu, other: int
) -> None:
    report = explain(held(make_record, at_once(other)), program, small_gpu)
    (device,) = report.devices
    low, high = sorted((70, other))
    assert device.peak_used_bytes == high + 120
    assert device.headroom_bytes == 1000 - 120 - high
    assert device.headroom.high_bytes == 1000 - 80 - low
    (made,) = report.allocator_basis.assumptions
    assert report.allocator_basis.kind is BasisKind.ASSUMED
    assert (made.low_bytes, made.high_bytes, made.count) == (low, high, 2)
    shown = plain(report)["devices"][0]
    assert (shown["peak_reserved_low_bytes"], shown["peak_reserved_high_bytes"]) == (low, high)
    assert (shown["num_held_blocks"], shown["held_at_peak_bytes"]) == (2, 30)
    assert f"other streams -{high - low} B" in render(run_blocks(report), full=True)


def test_a_program_that_fits_by_its_lower_end_alone_does_not_fit(
    make_record: Make, program: Program, small_gpu: Gpu
) -> None:
    record = held(make_record, at_once(95))
    tight = replace(small_gpu, total_bytes=200, total_low_bytes=200, total_high_bytes=200)
    assert explain(replace(record, otherwise=()), program, tight).verdict is Verdict.FITS
    assert explain(record, program, tight).verdict is Verdict.OUT_OF_MEMORY


# Two blocks of 30 bytes kept for collectives, of 70 allocated at the peak. The first was last used
# at its birth, the second at the last event.
KEPT = "+30 +30 +10 -30 -30"


def kept(make_record: Make, *deaths: int, **fields: object) -> Record:
    """The record of KEPT, in which the blocks freed by these events were kept for collectives."""
    record = make_record(KEPT, num_not_yet=len(deaths), **fields)
    was_kept = np.isin(np.arange(len(record.events)), deaths)
    uses = np.array([1, 4, 0, 0, 0], dtype=np.uint32)
    return replace(record, events=replace(record.events, was_kept=was_kept), last_use=uses)


def test_at_once_a_block_kept_for_a_collective_goes_after_its_last_use(make_record: Make) -> None:
    first = find_blocks_freed(make_record)
    record = kept(make_record, first)
    completion = find_completion(record, record.devices[0])
    assert (completion.allocated_low_bytes, completion.num_kept) == (40, 1)
    assert completion.low_bytes == 40  # no replay: no less than was allocated


def find_blocks_freed(make_record: Make) -> int:
    """The event that takes back the first block of KEPT."""
    events = make_record(KEPT).events
    (freed,) = np.flatnonzero((events.size_bytes < 0) & (events.address == events.address[0]))
    return int(freed)


def test_what_is_kept_to_the_end_goes_after_its_last_use_too(make_record: Make) -> None:
    record = make_record("+30 +10")
    place = (1, 0, int(record.events.address[0]))
    uses = np.array([1, 0], dtype=np.uint32)
    record = replace(record, operands=(place,), last_use=uses)
    completion = find_completion(record, record.devices[0])
    assert (completion.allocated_low_bytes, completion.num_kept) == (30, 1)


def test_the_ends_of_what_is_allocated_are_in_the_basis_and_the_document(
    make_record: Make, program: Program, small_gpu: Gpu
) -> None:
    report = explain(kept(make_record, find_blocks_freed(make_record)), program, small_gpu)
    made, _reserved = report.allocator_basis.assumptions
    assert (made.low_bytes, made.high_bytes, made.count) == (40, 70, 1)
    shown = plain(report)["devices"][0]
    assert shown["peak_allocated_low_bytes"] == 40
    assert shown["peak_allocated_high_bytes"] == shown["peak_allocated_bytes"] == 70
