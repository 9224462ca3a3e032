"""What is in use after each event, by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ullage.explain.moments.spikes import find_brief, levels_without
from ullage.explain.snapshot import SnapshotReport
from ullage.ground.units import MIB

ReportOf = Callable[..., SnapshotReport]


def test_levels_rise_with_births_and_fall_with_deaths(report_of: ReportOf) -> None:
    (device,) = report_of("[64 a+4 b+8 a- c+2").devices
    # segment, +a, +b, free requested, free completed, +c; entry 0 is before the first event.
    assert (device.levels.allocated_bytes // MIB).tolist() == [0, 0, 4, 12, 12, 8, 10]
    assert (device.levels.reserved_bytes // MIB).tolist() == [0, 64, 64, 64, 64, 64, 64]
    assert device.peak_event == 2
    assert device.levels.peak_reserved_event == 2  # of those with 64 reserved the fullest
    assert device.peak_allocated_bytes == 12 * MIB


def test_a_peak_before_the_trace_is_event_minus_one(report_of: ReportOf) -> None:
    report = report_of("[64 a+4 b+8", device_traces=[[]])
    assert report.devices[0].peak_event == -1
    assert report.devices[0].peak_allocated_bytes == 12 * MIB


def test_a_peak_without_some_blocks_is_that_of_the_others(report_of: ReportOf) -> None:
    (device,) = report_of("[64 a+4 b+8 b- c+6 a- d+1").devices
    blocks = device.replay.blocks
    (b,) = np.flatnonzero(blocks.size_bytes == 8 * MIB)
    assert levels_without(blocks, device.levels, np.array([b])).max() == 10 * MIB
    # Had a died at once, b alone would be the peak.
    (a,) = gone = np.flatnonzero(blocks.size_bytes == 4 * MIB)
    assert levels_without(blocks, device.levels, gone, blocks.birth[gone]).max() == 8 * MIB
    assert levels_without(blocks, device.levels, np.array([a, b]), left_frac=0.5)[3] == 6 * MIB


def test_what_goes_before_others_come_is_brief(report_of: ReportOf) -> None:
    (device,) = report_of("[64 a+8 b+1 c+1 d+1 a- e+1 f+4 g+1 f- h+1 i+1 j+1").devices
    sizes = device.replay.blocks.size_bytes[find_brief(device.replay)] // MIB
    assert sorted(sizes.tolist()) == [4, 8]  # the rest is there at the end
    assert device.spike is not None
    assert device.spike.size_bytes == 8 * MIB


def test_what_outlives_three_births_is_not_brief(report_of: ReportOf) -> None:
    (device,) = report_of("[64 a+8 b+1 c+1 d+1 e+1 a- f+1").devices
    assert not find_brief(device.replay).any()
    assert device.spike is None


def test_segments_of_a_device_that_cannot_be_have_no_trace(
    report_of: ReportOf, file_of: Callable[..., dict[str, Any]]
) -> None:
    file = file_of("[64 a+4")
    file["segments"][0]["device"] = -1
    report = report_of("", **file)
    assert [device.index for device in report.devices] == [-1, 0]
    assert report.devices[0].peak_allocated_bytes == 4 * MIB
