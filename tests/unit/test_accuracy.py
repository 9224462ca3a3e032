"""Two recordings of the accuracy benchmark held together: what is equal, and what is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.accuracy.compare import Comparison, compare, false_fits
from benchmarks.accuracy.phantom import bound_lines
from benchmarks.accuracy.record import ACTIONS, collect, digest, note_error, part
from benchmarks.accuracy.workload_names import ALLOC_CONF, NAMES

ALLOC, ASKED, FREED = (ACTIONS.index(a) for a in ("alloc", "free_requested", "free_completed"))
EVENTS = [(ALLOC, 512), (ALLOC, 1024), (ASKED, 512), (FREED, 512), (ASKED, 1024), (FREED, 1024)]
NAME = NAMES[0]


def peaks(reserved: int) -> dict[str, int]:
    return {"requested": 1500, "allocated": 1536, "active": 1536, "reserved": reserved}


def record(folder: Path, events: list[tuple[int, int]], reserved: int = 2048) -> Path:
    """A recording of one workload, as record.py leaves it."""
    parts = folder / "parts"
    parts.mkdir(parents=True)
    steps = [peaks(reserved), peaks(reserved // 2)]
    row = {"torch": "2.15.0", "gpu": "H100", "steps": steps, "num_events": len(events)}
    (parts / f"{NAME}.json").write_text(json.dumps(row))
    np.savez_compressed(parts / f"{NAME}.npz", events=np.array(events, dtype=np.int64))
    collect(parts, folder)
    return folder


def compared(tmp_path: Path, events: list[tuple[int, int]], **kw: Any) -> Comparison:
    row = compare(record(tmp_path / "a", EVENTS), record(tmp_path / "b", events, **kw))[NAME]
    assert isinstance(row, Comparison)
    return row


def test_a_recording_equals_itself(tmp_path: Path) -> None:
    row = compared(tmp_path, EVENTS)
    assert row.first_difference is None
    assert set(row.errors.values()) == {0.0}


def test_the_order_of_frees_in_a_row_does_not_count(tmp_path: Path) -> None:
    swapped = EVENTS[:2] + EVENTS[4:] + EVENTS[2:4]
    assert compared(tmp_path, swapped).first_difference is None
    assert digest(np.array(swapped)) == digest(np.array(EVENTS))


@pytest.mark.parametrize("place", range(len(EVENTS)))
def test_one_changed_size_is_found(tmp_path: Path, place: int) -> None:
    changed = [(a, size + 512 * (i == place)) for i, (a, size) in enumerate(EVENTS)]
    first = compared(tmp_path, changed).first_difference
    assert first == place if place < 2 else first is not None and first >= 2
    assert digest(np.array(changed)) != digest(np.array(EVENTS))


def test_an_event_too_many_or_too_few_is_found(tmp_path: Path) -> None:
    assert compared(tmp_path / "few", EVENTS[:-1]).first_difference == 5
    assert compared(tmp_path / "many", [*EVENTS, (ALLOC, 512)]).first_difference == 6


def test_the_highest_peak_of_all_steps_is_compared(tmp_path: Path) -> None:
    assert compared(tmp_path, EVENTS, reserved=3072).errors["reserved"] == pytest.approx(0.5)


def test_fitting_here_and_not_there_is_told(tmp_path: Path) -> None:
    here = record(tmp_path / "here", EVENTS)
    there = tmp_path / "there"
    (there / "parts").mkdir(parents=True)
    note_error(NAME, there / "parts", "torch.OutOfMemoryError: CUDA out of memory. Tried ...")
    collect(there / "parts", there)
    assert false_fits(there, here) == [NAME]
    assert false_fits(here, here) == []
    assert bound_lines([there], here, {NAME})[2].endswith("**does not hold**")


def test_what_no_recording_shows_is_not_said_to_hold(tmp_path: Path) -> None:
    here = record(tmp_path / "here", EVENTS)
    assert all(line.endswith("not shown") for line in bound_lines([], here, {NAME})[:3])
    lines = bound_lines([record(tmp_path / "there", EVENTS)], here, {NAME})
    assert [line.rpartition(": ")[2] for line in lines[:3]] == ["holds", "not shown", "holds"]
    changed = record(tmp_path / "other", [(ALLOC, 1), *EVENTS[1:]])
    assert bound_lines([changed], here, {NAME})[0].endswith("**does not hold**")


def test_recordings_of_two_gpus_are_not_joined(tmp_path: Path) -> None:
    parts = record(tmp_path, EVENTS) / "parts"
    row = part(NAME, parts) or {}
    (parts / f"{NAMES[1]}.json").write_text(json.dumps(row | {"gpu": "A100"}))
    with pytest.raises(SystemExit, match="one folder for each"):
        collect(parts, tmp_path)


def test_settings_are_those_of_workloads() -> None:
    assert set(ALLOC_CONF) <= set(NAMES)
    assert len(set(NAMES)) == len(NAMES)
