"""Holes, what keeps them, and what a request would find: by hand, and against brute force."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ullage.explain.fragmentation import find_fragmentation, find_private
from ullage.explain.snapshot import SnapshotReport
from ullage.ground.units import MIB

ReportOf = Callable[..., SnapshotReport]
HOLED = "[64 a+16 b+4 c+20 d+24 [32 e+32 a- c- e- [8 f+2"
# a and c leave 16 and 20 free around b in the first; the second is empty; f comes into a's hole.


def test_holes_lie_between_blocks_and_empty_segments_apart(report_of: ReportOf) -> None:
    (device,) = report_of(HOLED).devices
    lay = find_fragmentation(device.replay, device.replay.num_events - 1)
    assert lay.reserved_bytes == 104 * MIB
    assert lay.allocated_bytes == (4 + 24 + 2) * MIB
    assert lay.empty_bytes == (32 + 8) * MIB
    assert lay.hole_bytes == (14 + 20) * MIB
    assert (lay.holes // MIB).tolist() == [32, 20, 14, 8]
    assert lay.allocated_bytes + lay.empty_bytes + lay.hole_bytes == lay.reserved_bytes


def test_a_segment_is_kept_by_its_blocks_the_largest_first(report_of: ReportOf) -> None:
    (device,) = report_of(HOLED).devices
    lay = find_fragmentation(device.replay, device.replay.num_events - 1)
    (kept,) = lay.pinned
    sizes = device.replay.blocks.size_bytes[list(kept.blocks)] // MIB
    assert sizes.tolist() == [24, 4, 2]
    assert (kept.free_bytes, kept.largest_free_bytes) == (34 * MIB, 20 * MIB)


@pytest.mark.parametrize(
    ("size", "room"), [(1, 32 + 20 + 14 + 8), (8, 4 + 2 + 1 + 1), (20, 2), (33, 0)]
)
def test_a_request_finds_room_in_holes_as_they_lie(
    report_of: ReportOf, size: int, room: int
) -> None:
    (device,) = report_of(HOLED).devices
    lay = find_fragmentation(device.replay, device.replay.num_events - 1)
    assert lay.room_for(size * MIB) == room


def test_free_memory_of_a_private_pool_is_apart(report_of: ReportOf) -> None:
    report = report_of("[64 a+16 {32 b+40 c+24")
    (device,) = report.devices
    private = find_private(report.snapshot, device.replay, 0)
    assert private.tolist() == [False, True]
    lay = device.fragmentation
    assert lay.private_bytes == 32 * MIB
    assert lay.private_free_bytes == (32 - 24) * MIB
    assert lay.hole_bytes == 8 * MIB


def test_a_block_over_two_mappings_holds_both(report_of: ReportOf) -> None:
    """In an expandable segment mappings lie side by side, and a block may reach over several."""
    (device,) = report_of("[64 a+16").devices
    replay = device.replay
    begin = int(replay.segments.address[0])
    from dataclasses import replace

    halves = replace(
        replay.segments,
        address=np.array([begin, begin + 8 * MIB]), size_bytes=np.array([8 * MIB, 56 * MIB]),
        birth=np.array([0, 0]), death=np.array([9, 9]),
    )  # fmt: skip
    lay = find_fragmentation(replace(replay, segments=halves), 1)
    assert (lay.hole_bytes, lay.empty_bytes) == (48 * MIB, 0)


def test_holes_are_what_no_block_covers(report_of: ReportOf) -> None:
    """Against brute force, a MiB at a time, after every event."""
    (device,) = report_of(HOLED + " g+8 b- h+30 d- i+5").devices
    blocks, segments = device.replay.blocks, device.replay.segments
    for event in range(device.replay.num_events):
        lay = find_fragmentation(device.replay, event)
        free = set()
        there = (segments.birth <= event) & (event < segments.death)
        for begin, size in zip(segments.address[there], segments.size_bytes[there], strict=True):
            free |= set(range(begin, begin + size, MIB))
        live = blocks.is_live(event)
        for begin, size in zip(blocks.address[live], blocks.size_bytes[live], strict=True):
            free -= set(range(begin, begin + size, MIB))
        assert int(lay.holes.sum()) == len(free) * MIB
        assert lay.hole_bytes + lay.empty_bytes == len(free) * MIB
