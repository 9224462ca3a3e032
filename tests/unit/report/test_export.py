"""A snapshot in the formats of other tools, read back."""

from __future__ import annotations

import csv
import io
import itertools
import json
import lzma
import os
import pickle
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ullage
from ullage.explain.moments.course import Course, Phase, StepSource
from ullage.explain.moments.levels import find_levels
from ullage.ground.errors import SpecError
from ullage.ground.units import format_bytes
from ullage.log.model import Category
from ullage.log.replay import replay
from ullage.log.snapshot import Action
from ullage.log.snapshot_reader import read_snapshot
from ullage.verbs.document.export import check_format, write_csv, write_folded, write_pickle
from ullage.verbs.document.trace_events import write_trace_events
from ullage.verbs.page.payload import SnapshotPage

GOLDEN = Path(__file__).parents[2] / "golden" / "snapshots"
NAMES = sorted(path.name.partition(".")[0] for path in GOLDEN.glob("*.pickle.xz"))


def read_page(tmp_path: Path, name: str) -> SnapshotPage:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(lzma.decompress((GOLDEN / f"{name}.pickle.xz").read_bytes()))
    snapshot = read_snapshot(path)
    lives = replay(snapshot)
    codes = (lives.blocks.stack % len(Category)).astype(np.uint8)
    return SnapshotPage(name, snapshot, lives, find_levels(lives), category=codes)


def test_folded_stacks_come_to_the_peak(tmp_path: Path) -> None:
    page = read_page(tmp_path, "wed_med_train256")
    out = io.StringIO()
    write_folded(out, page)
    rows = [line.rpartition(" ") for line in out.getvalue().splitlines()]
    peak = find_levels(page.replay).allocated_bytes.max()
    assert sum(int(size) for _, _, size in rows) == peak
    assert len({stack for stack, _, _ in rows}) == len(rows)
    stacks = page.snapshot.stacks
    innermost = {stacks.of(stack)[0][2] for stack in range(len(stacks)) if stacks.of(stack)}
    ends = {stack.rpartition(";")[2].partition(" (")[0] for stack, _, _ in rows if ";" in stack}
    assert ends and ends <= {name.partition(" (")[0] for name in innermost}


def test_the_csv_has_every_block(tmp_path: Path) -> None:
    page = read_page(tmp_path, "roy_train256_ring")
    blocks, out = page.replay.blocks, io.StringIO()
    write_csv(out, [page])
    rows = list(csv.DictReader(io.StringIO(out.getvalue())))
    assert [int(row["size_bytes"]) for row in rows] == blocks.size_bytes.tolist()
    assert [int(row["birth_event"] or -1) for row in rows] == blocks.birth.tolist()
    at_end = [row for row in rows if row["death_event"] == ""]
    assert len(at_end) == (blocks.death == page.replay.num_events).sum()
    times = page.snapshot.events_of(0).time_us
    born = next(row for row in rows if row["birth_event"])
    assert int(born["birth_us"]) == times[int(born["birth_event"])]


FIELDS = {
    "M": {"name", "ph", "pid", "args"},
    "C": {"name", "ph", "ts", "pid", "args"},
    "X": {"name", "ph", "ts", "dur", "pid", "tid"},
    "i": {"name", "ph", "ts", "pid", "tid", "s"},
}


def read_trace(*pages: SnapshotPage) -> list[dict[str, Any]]:
    """The events of the pages in the trace event format, each with the fields that it asks for."""
    out = io.StringIO()
    write_trace_events(out, pages)
    trace = json.loads(out.getvalue())
    assert trace["displayTimeUnit"] in ("ms", "ns")
    for event in trace["traceEvents"]:
        assert set(event) - {"tid"} == FIELDS[event["ph"]] - {"tid"}
        assert event["ph"] == "M" or (isinstance(event["ts"], int) and event["ts"] >= 0)
        assert event["ph"] != "X" or event["dur"] >= 0
        assert event["ph"] != "i" or event["s"] in ("g", "p", "t")
        assert event["ph"] != "C" or all(type(one) is int for one in event["args"].values())
    events: list[dict[str, Any]] = trace["traceEvents"]
    return events


def test_a_trace_without_a_finished_step_or_phase_is_written(tmp_path: Path) -> None:
    page = read_page(tmp_path, "charan_small_fwd")
    none = np.empty(0, dtype=np.int64)
    phases, grads = np.empty(0, dtype=np.uint8), np.empty(0, dtype=np.bool_)
    course = Course(none, phases, grads, none, none, StepSource.RECORD, has_phases=True)
    assert [event for event in read_trace(replace(page, course=course)) if event["ph"] == "C"]


def test_trace_events_are_the_levels(tmp_path: Path) -> None:
    page = read_page(tmp_path, "charan_small_fwd")
    values: dict[str, list[tuple[int, int]]] = {}
    for event in read_trace(page):
        if event["ph"] == "C":
            values.setdefault(event["name"], []).append((event["ts"], event["args"]["bytes"]))
    levels = find_levels(page.replay)
    live = values["live"]
    assert max(value for _, value in live) == levels.allocated_bytes.max()
    assert live[0][1] == levels.allocated_bytes[0] and live[-1][1] == levels.allocated_bytes[-1]
    assert max(value for _, value in values["reserved"]) == levels.reserved_bytes.max()
    times = page.snapshot.events_of(0).time_us
    assert live[0][0] == times[0] and live[-1][0] <= times[-1]
    assert live == sorted(live, key=lambda row: row[0])
    last = [rows[-1][1] for name, rows in values.items() if ": " in name]
    assert sum(last) == levels.allocated_bytes[-1]


def test_steps_follow_one_another_in_trace_events(tmp_path: Path) -> None:
    page = read_page(tmp_path, "wed_med_train256")
    ends = np.array([100, 400, 900])
    course = Course(
        begin=np.array([-1, 50, 300, 500]),
        phase=np.array([Phase.OUTSIDE, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER], np.uint8),
        grad=np.ones(4, dtype=np.bool_),
        step=np.array([0, 0, 1, 2]),
        step_ends=ends,
        source=StepSource.RECORD,
        has_phases=True,
    )
    found = [one for one in read_trace(replace(page, course=course)) if one["ph"] == "X"]
    steps = [one for one in found if one["name"].startswith("step ")]
    assert [one["name"] for one in steps] == ["step 0", "step 1", "step 2"]
    for one, two in itertools.pairwise(steps):
        assert one["ts"] + one["dur"] == two["ts"]
    times = page.snapshot.events_of(0).time_us
    assert steps[0]["ts"] == times[0] and steps[1]["ts"] == times[ends[0] - 1]
    names = [one["name"] for one in found if one not in steps]
    assert names == ["forward", "backward", "optimizer"]


def test_running_out_of_memory_is_an_instant(tmp_path: Path) -> None:
    page = read_page(tmp_path, "wed_med_train256")
    (table, *_) = page.snapshot.events
    action = table.action.copy()
    action[500] = Action.OOM
    events = (replace(table, action=action),)
    changed = replace(page, snapshot=replace(page.snapshot, events=events))
    (found,) = [one for one in read_trace(changed) if one["ph"] == "i"]
    asked = format_bytes(int(table.size_bytes[500]))
    assert found["name"] == f"out of memory: no room for {asked}"
    assert found["ts"] == table.time_us[500]


FORMATS = ("pickle", "perfetto.json", "folded", "csv", "json", "ullage")


@pytest.mark.parametrize("ending", FORMATS)
def test_a_snapshot_is_exported_by_the_ending_of_the_name(tmp_path: Path, ending: str) -> None:
    source = tmp_path / "snapshot.pickle"
    source.write_bytes(lzma.decompress((GOLDEN / "wed_med_train256.pickle.xz").read_bytes()))
    explained = ullage.explain_file(source)
    path = tmp_path / f"exported.{ending}"
    assert explained.export(path) == path
    if ending in ("pickle", "ullage"):
        again = ullage.explain_file(path)
        assert again.report.devices[0].owners_at_peak == explained.report.devices[0].owners_at_peak
    elif ending == "folded":
        sizes = [int(line.rpartition(" ")[2]) for line in path.read_text().splitlines()]
        assert sum(sizes) == explained.report.devices[0].peak_allocated_bytes
    elif ending == "csv":
        rows = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))
        assert len(rows) == len(explained.report.devices[0].replay.blocks)
        assert {row["device"] for row in rows} == {"0"}
    else:
        found = json.loads(path.read_text(encoding="utf-8"))
        assert found == explained.document if ending == "json" else "traceEvents" in found
    beside = explained.export(path)
    assert beside != path and explained.export(path, force=True) == path


def test_a_name_of_no_format_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(SpecError) as caught:
        check_format(Path("snapshot.svg"))
    assert "'snapshot.svg' says no format" in str(caught.value)
    assert all(f".{ending} (" in str(caught.value) for ending in FORMATS)


MEMORY_VIZ = """
import json, pickle, sys
from torch.cuda import _memory_viz
with open(sys.argv[1], "rb") as file:
    snapshot = pickle.load(file)
page = _memory_viz.trace_plot(snapshot)
print(json.dumps([len(page), _memory_viz.segsum(snapshot)[:200]]))
"""


def test_torchs_own_viewer_opens_the_pickle(tmp_path: Path) -> None:
    python = os.environ.get("ULLAGE_TEST_PYTHON")
    if not python:
        pytest.skip("needs ULLAGE_TEST_PYTHON, the interpreter of an environment with torch")
    path = tmp_path / "again.pickle"
    with path.open("wb") as file:
        write_pickle(file, read_page(tmp_path, "wed_med_train256").snapshot)
    command = [python, "-c", MEMORY_VIZ, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    length, segments = json.loads(done.stdout.splitlines()[-1])
    assert length > path.stat().st_size  # the snapshot is in the page, as base64
    assert segments.startswith("Summary of segments")


@pytest.mark.parametrize("name", NAMES)
def test_the_pickle_reads_back_the_same(tmp_path: Path, name: str) -> None:
    page = read_page(tmp_path, name)
    again = tmp_path / "again.pickle"
    with again.open("wb") as file:
        write_pickle(file, page.snapshot)
    assert again.read_bytes()[:2] == b"\x80\x04"
    old, new = page.snapshot, read_snapshot(again)
    assert new.unknown == {}
    assert len(new.events) == len(old.events)
    for before, after in zip(old.events, new.events, strict=True):
        for column in ("action", "address", "size_bytes", "stream", "time_us"):
            assert (getattr(before, column) == getattr(after, column)).all()
    for table in ("segments", "blocks"):
        was, found = getattr(old, table), getattr(new, table)
        for column in set(was.__slots__) - {"stack", "pool"}:  # numbered as they are met
            assert (getattr(was, column) == getattr(found, column)).all(), column
    lives = replay(new).blocks
    assert [new.stacks.of(int(one)) for one in lives.stack[:200]] == [
        old.stacks.of(int(one)) for one in page.replay.blocks.stack[:200]
    ]
    assert dict(new.settings) == dict(old.settings)


def test_the_pickle_is_as_torch_writes_it(tmp_path: Path) -> None:
    raw = pickle.loads(lzma.decompress((GOLDEN / "wed_med_train256.pickle.xz").read_bytes()))
    out = io.BytesIO()
    write_pickle(out, read_page(tmp_path, "wed_med_train256").snapshot)
    made = pickle.loads(out.getvalue())
    assert made["segments"] == raw["segments"]
    event, wanted = made["device_traces"][0][500], raw["device_traces"][0][500]
    assert {key: event[key] for key in wanted if key in event} == {
        key: wanted[key] for key in wanted if key in event
    }
    assert set(wanted) - set(event) <= {"compile_context", "user_metadata"}
