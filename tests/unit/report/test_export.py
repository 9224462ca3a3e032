"""A snapshot in the formats of other tools, read back."""

from __future__ import annotations

import csv
import io
import lzma
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ullage.explain.levels import find_levels
from ullage.report.export import write_csv, write_folded, write_perfetto, write_pickle
from ullage.report.html import SnapshotPage
from ullage.trace.model import Category
from ullage.trace.replay import replay
from ullage.trace.snapshot_reader import read_snapshot

GOLDEN = Path(__file__).parents[2] / "golden" / "snapshots"
NAMES = sorted(path.name.partition(".")[0] for path in GOLDEN.glob("*.pickle.xz"))


def read_page(tmp_path: Path, name: str) -> SnapshotPage:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(lzma.decompress((GOLDEN / f"{name}.pickle.xz").read_bytes()))
    snapshot = read_snapshot(path)
    lives = replay(snapshot)
    codes = (lives.blocks.stack % len(Category)).astype(np.uint8)
    return SnapshotPage(name, snapshot, lives, category=codes)


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
    write_csv(out, page)
    rows = list(csv.DictReader(io.StringIO(out.getvalue())))
    assert [int(row["size_bytes"]) for row in rows] == blocks.size_bytes.tolist()
    assert [int(row["birth_event"] or -1) for row in rows] == blocks.birth.tolist()
    at_end = [row for row in rows if row["death_event"] == ""]
    assert len(at_end) == (blocks.death == page.replay.num_events).sum()
    times = page.snapshot.events_of(0).time_us
    born = next(row for row in rows if row["birth_event"])
    assert int(born["birth_us"]) == times[int(born["birth_event"])]


def read_fields(body: bytes) -> list[tuple[int, Any]]:
    """The fields of a protocol buffer: an independent reading of the wire format."""
    fields, at = [], 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = body[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(body):
        key = varint()
        value: Any = varint()
        if key & 7 == 2:
            value, at = body[at : at + value], at + value
        fields.append((key >> 3, value))
    return fields


def test_perfetto_counters_are_the_levels(tmp_path: Path) -> None:
    page = read_page(tmp_path, "charan_small_fwd")
    out = io.BytesIO()
    write_perfetto(out, page)
    names: dict[int, str] = {}
    values: dict[int, list[tuple[int, int]]] = {}
    for _, packet in read_fields(out.getvalue()):
        parts = dict(read_fields(packet))
        if 60 in parts:
            track = dict(read_fields(parts[60]))
            names[track[1]] = track[2].decode()
            assert dict(read_fields(track[8])) == {3: 3}
        else:
            event = dict(read_fields(parts[11]))
            assert event[9] == 4
            values.setdefault(event[11], []).append((parts[8], event[30]))
    levels = find_levels(page.replay)
    by_name = {names[track]: rows for track, rows in values.items()}
    live = by_name["device 0 live"]
    assert max(value for _, value in live) == levels.allocated_bytes.max()
    assert live[0][1] == levels.allocated_bytes[0] and live[-1][1] == levels.allocated_bytes[-1]
    times = page.snapshot.events_of(0).time_us
    assert live[0][0] == times[0] * 1000 and live[-1][0] <= times[-1] * 1000
    last = [rows[-1][1] for name, rows in by_name.items() if ": " in name]
    assert sum(last) == levels.allocated_bytes[-1]


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
