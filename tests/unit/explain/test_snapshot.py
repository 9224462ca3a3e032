"""Recordings of real GPUs explained: what must hold of any."""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
import pytest

from ullage.explain.rules.registry import find_findings
from ullage.explain.snapshot import SnapshotReport, explain_snapshot
from ullage.log.snapshot_reader import read_snapshot

GOLDEN = Path(__file__).parents[2] / "golden" / "snapshots"
SYNTHETIC = "mosaic_SYNTHETIC"
NAMES = {path.name.partition(".")[0] for path in GOLDEN.glob("*.pickle.xz")} - {SYNTHETIC}


def explained(directory: Path, name: str) -> SnapshotReport:
    """A recording, explained."""
    path = directory / f"{name}.pickle"
    path.write_bytes(lzma.decompress((GOLDEN / f"{name}.pickle.xz").read_bytes()))
    return explain_snapshot(read_snapshot(path))


@pytest.fixture(scope="module", params=sorted(NAMES))
def report(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> SnapshotReport:
    found = explained(tmp_path_factory.mktemp("golden"), request.param)
    assert not found.contradictions
    return found


def test_a_file_that_contradicts_itself_is_told_to(tmp_path: Path) -> None:
    report = explained(tmp_path, SYNTHETIC)
    assert "there is no free range" in report.contradictions[0]
    assert not any(one.rule.code == "UL141" for one in find_findings(report))


def test_owners_and_lines_sum_to_what_is_allocated_at_the_peak(report: SnapshotReport) -> None:
    for device in report.devices:
        peak = device.peak_allocated_bytes
        assert sum(device.owners_at_peak.values()) == peak
        assert sum(share.size_bytes for share in device.sites_at_peak) == peak


def test_parts_sum_to_what_is_reserved(report: SnapshotReport) -> None:
    for device in report.devices:
        lay = device.fragmentation
        parts = lay.allocated_bytes + lay.empty_bytes + lay.hole_bytes + lay.private_free_bytes
        assert parts == lay.reserved_bytes == device.peak_reserved_bytes
        assert lay.requested_bytes <= lay.allocated_bytes
        assert int(lay.holes.sum()) == lay.empty_bytes + lay.hole_bytes
        assert min(lay.empty_bytes, lay.hole_bytes, lay.private_free_bytes) >= 0


def test_the_levels_end_as_the_file_does(report: SnapshotReport) -> None:
    table = report.snapshot.segments
    for device in report.devices:
        here = table.device == device.index
        assert device.levels.reserved_bytes[-1] == table.total_bytes[here].sum()
        live = device.replay.blocks.is_live(device.replay.num_events - 1)
        assert device.levels.allocated_bytes[-1] == device.replay.blocks.size_bytes[live].sum()
        assert (device.levels.allocated_bytes <= device.levels.reserved_bytes).all()


def test_nothing_grows_in_programs_that_do_not_leak(report: SnapshotReport) -> None:
    assert all(device.growth == () for device in report.devices)


def test_findings_promise_no_more_than_there_is(report: SnapshotReport) -> None:
    for finding in find_findings(report):
        device = next(one for one in report.devices if one.index == finding.device)
        assert 0 < finding.gain_bytes < device.peak_reserved_bytes
        assert finding.what and finding.evidence and finding.change
        assert finding.blocks is None or np.all(finding.blocks < len(device.replay.blocks))
        # Owners of these are guessed, so what rests on owners is said to be a guess.
        assert finding.is_guess or finding.rule.code >= "UL140"
