"""Both ends of the peaks where the sizes of workspaces are assumed, and where they are shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ullage.answers.text import render
from ullage.explain.program import Program
from ullage.explain.reserved import find_workspaces
from ullage.explain.run import RunReport, explain_run
from ullage.facts.gpus.catalog import Gpu
from ullage.ground.protocol.plain import plain
from ullage.log.bounds import OtherPeaks, Otherwise, Peaks
from ullage.log.model import Record
from ullage.verbs.run.text import run_blocks

Make = Callable[..., Record]
# 70 bytes at once, 40 at the end: 70 are reserved.
SCRIPT = "+30 +40 -30 +30 -30"
NAME, OTHER = "cuDNN convolution forward workspace", "cuSOLVER workspace"
UNKNOWN = OtherPeaks(Otherwise.WORKSPACES, 0, (), 3, names=frozenset({NAME}))
ENDS = replace(UNKNOWN, peaks=(Peaks(60, 65), Peaks(95, 80)))


def sizes(what: str, low: int, answered: int, high: int) -> list[Any]:
    return ["workspace", what, "", 2, low, answered, high]


def record_of(make_record: Make, *ends: OtherPeaks, more: int = 40) -> Record:
    assumed = [sizes(NAME, 0, 20, 20 + more)]
    return replace(make_record(SCRIPT, basis=assumed), otherwise=ends)


def explain(record: Record, program: Program, gpu: Gpu) -> RunReport:
    return explain_run(
        [(record, None)], program=program, torch="2.15.0", gpu=gpu, is_unlimited=False
    )


def test_the_document_has_the_ends_of_the_replay(
    make_record: Make, program: Program, small_gpu: Gpu
) -> None:
    report = explain(record_of(make_record, ENDS), program, small_gpu)
    shown = plain(report)["devices"][0]
    assert (shown["peak_reserved_low_bytes"], shown["peak_reserved_high_bytes"]) == (60, 95)
    assert (shown["peak_allocated_low_bytes"], shown["peak_allocated_high_bytes"]) == (65, 80)
    kind, allocated, reserved = report.allocator_basis.assumptions
    assert (kind.what, kind.count) == (NAME, 2)
    assert (allocated.low_bytes, allocated.high_bytes, allocated.count) == (65, 80, 3)
    assert (reserved.low_bytes, reserved.high_bytes, reserved.count) == (60, 95, 3)
    assert "workspaces +25 B -10 B" in render(run_blocks(report), full=True)


def test_the_headroom_counts_them_once_and_the_verdict_not_at_all(
    make_record: Make, program: Program, small_gpu: Gpu
) -> None:
    (device,) = explain(record_of(make_record, ENDS), program, small_gpu).devices
    assert device.peak_used_bytes == 70 + 120
    assert device.headroom_bytes == 1000 - 120 - 70
    assert device.headroom.low_bytes == 1000 - 120 - 95
    assert device.headroom.high_bytes == 1000 - 80 - 60


def test_without_a_replay_the_most_uncertain_workspace_widens_the_headroom_alone(
    make_record: Make, program: Program, small_gpu: Gpu
) -> None:
    for record in (record_of(make_record), record_of(make_record, UNKNOWN)):
        report = explain(record, program, small_gpu)
        shown = plain(report)["devices"][0]
        assert (shown["peak_reserved_low_bytes"], shown["peak_reserved_high_bytes"]) == (70, 70)
        headroom = report.devices[0].headroom
        assert (headroom.workspace_less_bytes, headroom.workspace_more_bytes) == (20, 40)
        assert len(report.allocator_basis.assumptions) == 1


def test_a_convolution_takes_no_more_than_there_is_and_others_do(
    make_record: Make, program: Program, small_gpu: Gpu
) -> None:
    for name, lowest in ((NAME, 0), (OTHER, 1000 - 120 - 70 - 5000)):
        record = make_record(SCRIPT, basis=[sizes(name, 0, 20, 5020)])
        report = explain(record, program, small_gpu)
        assert report.devices[0].headroom.low_bytes == lowest
        assert any("would be missing" in text for text in report.warnings) == (lowest < 0)


@pytest.mark.parametrize(("answered", "less", "more"), [(50, 50, 25), (5, 10, 95)])
def test_what_was_not_replayed_counts_beside_it(
    make_record: Make, answered: int, less: int, more: int
) -> None:
    assumed = [sizes(NAME, 0, 20, 900), sizes(OTHER, 0, answered, 50 if answered == 50 else 100)]
    record = replace(make_record(SCRIPT, basis=assumed), otherwise=(ENDS,))
    ends = find_workspaces(record, record.devices[0])
    assert (ends.less_bytes, ends.more_bytes) == (less, more)


def test_the_ends_of_another_device_do_not_count(make_record: Make) -> None:
    record = record_of(make_record, replace(ENDS, device=1))
    ends = find_workspaces(record, record.devices[0])
    assert (ends.reserved_low_bytes, ends.reserved_high_bytes, ends.num_blocks) == (70, 70, 0)


def test_they_add_to_what_asynchronous_work_leaves_open(
    make_record: Make, program: Program, small_gpu: Gpu
) -> None:
    record = record_of(make_record, ENDS)
    once = OtherPeaks(Otherwise.COMPLETION, 0, (Peaks(50, 70),), 2, 30)
    record = replace(record, num_not_yet=1, otherwise=(ENDS, once))
    (device,) = explain(record, program, small_gpu).devices
    assert (device.reserved.low_bytes, device.reserved.high_bytes) == (40, 95)
