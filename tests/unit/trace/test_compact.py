"""Our own compact file: it says what the snapshot said, and takes nothing from anybody on trust."""

from __future__ import annotations

import json
import lzma
import pickle
import struct
import zlib
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tests.rows import each

from ullage.ground.errors import SnapshotError
from ullage.log.compact_format import compact, container
from ullage.log.compact_format.compact import read_compact, write_compact
from ullage.log.compact_format.container import inflate, pack_chunk, unpack_chunk
from ullage.log.snapshot import Snapshot
from ullage.log.snapshot_reader import read_snapshot

RunApart = Callable[[str, Path], tuple[str, int]]

GOLDEN = Path(__file__).parents[2] / "golden" / "snapshots"
NAMES = sorted(path.name.partition(".")[0] for path in GOLDEN.glob("*.pickle.xz"))
PREFIX = struct.Struct("<8sQI")


def assert_same(got: Any, expected: Any, place: str = "snapshot") -> None:
    """Equal field by field, types and all."""
    assert type(got) is type(expected), place
    if isinstance(expected, np.ndarray):
        assert got.dtype == expected.dtype, place
        assert np.array_equal(got, expected), place
    elif is_dataclass(expected):
        for field in fields(expected):
            name = field.name
            assert_same(getattr(got, name), getattr(expected, name), f"{place}.{name}")
    elif isinstance(expected, tuple):
        assert len(got) == len(expected), place
        for number, pair in enumerate(zip(got, expected, strict=True)):
            assert_same(*pair, f"{place}[{number}]")
    else:
        assert got == expected, place


def read_raw(directory: Path, raw: Any) -> Snapshot:
    path = directory / "snapshot.pickle"
    path.write_bytes(pickle.dumps(raw))
    return read_snapshot(path)


def event(**changes: Any) -> dict[str, Any]:
    frames = [{"filename": "a.py", "line": 3, "name": "f"}]
    return {"action": "alloc", "addr": 2**46, "size": 700, "stream": 0, "frames": frames, **changes}


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    """One with something in every field."""
    block = {"size": 1024, "requested_size": 700, "state": "active_allocated", "frames": []}
    segment = {"device": 1, "address": 2**46, "total_size": 1024, "segment_type": "small",
               "segment_pool_id": (3, 4), "blocks": [block]}  # fmt: skip
    record = {"schema": "ullage.record/1", "events": {"bytes": b"\x00\xff" * 9},
              "claims": [(1, "a", None), [2.5, True, 10**30]], 7: "é"}  # fmt: skip
    raw = {
        "segments": [segment, {**segment, "blocks": [block, block]}, {"blocks": []}],
        "device_traces": [[event()], [], [event(time_us=5, pool_id=(3, 4)), event(action="odd")]],
        "host_traces": [[event(user_metadata="step 1", compile_context="N/A")]],
        "host_segments": [segment],
        "allocator_settings": {"max_split_size": -1, "roundup_power2_divisions": {"1": 4}},
        "external_annotations": [{"name": "all_reduce", "stage": "START", "time_us": 2**50}],
        "ullage": record,
        "surprise": 1,
    }
    return read_raw(tmp_path, raw)


@pytest.fixture
def path(tmp_path: Path, snapshot: Snapshot) -> Path:
    """Its file."""
    written = tmp_path / "snapshot.ullage"
    write_compact(snapshot, written)
    return written


def test_a_snapshot_comes_back_field_by_field(snapshot: Snapshot, path: Path) -> None:
    assert snapshot.record is not None and snapshot.annotations and snapshot.unknown
    assert len(snapshot.pools) == 2 and len(snapshot.texts) == 2
    assert_same(read_compact(path), snapshot)


@pytest.mark.parametrize("name", NAMES)
def test_every_recording_comes_back(tmp_path: Path, name: str) -> None:
    source, target = tmp_path / "golden.pickle", tmp_path / "golden.ullage"
    source.write_bytes(lzma.decompress((GOLDEN / f"{name}.pickle.xz").read_bytes()))
    expected = read_snapshot(source)
    write_compact(expected, target)
    assert_same(read_snapshot(target), expected)  # the reader knows it by its first bytes
    assert target.stat().st_size < source.stat().st_size / 4


def test_an_empty_snapshot_comes_back(tmp_path: Path) -> None:
    expected = read_raw(tmp_path, {"segments": [], "device_traces": []})
    write_compact(expected, tmp_path / "empty.ullage")
    got = read_compact(tmp_path / "empty.ullage")
    assert_same(got, expected)
    assert got.record is None


WIDE = arrays.arrays(np.int64, st.integers(1, 50))
NARROW = arrays.arrays(np.uint32, st.integers(1, 50)) | arrays.arrays(np.uint8, st.integers(1, 50))


@settings(deadline=None)
@given(numbers=WIDE | NARROW, is_deflated=st.booleans())
def test_any_numbers_come_back(numbers: Any, is_deflated: bool) -> None:  # noqa: FBT001
    chunk, content = pack_chunk(numbers, is_deflated=is_deflated)
    got = np.empty_like(numbers)
    unpack_chunk(chunk, content, got)
    assert got.tolist() == numbers.tolist()


def test_times_and_addresses_are_packed_into_few_bytes() -> None:
    times = 1_700_000_000_000_000 + np.cumsum(np.tile([3, 5, 9], 1000))
    chunk, content = pack_chunk(times)
    assert chunk.is_delta and chunk.width == 1
    assert len(content) < 200


def test_a_column_longer_than_a_chunk_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container, "CHUNK_ROWS", 7)
    rows = [event(addr=2**46 + 512 * i, time_us=i * i) for i in range(50)]
    expected = read_raw(tmp_path, {"segments": [], "device_traces": [rows]})
    write_compact(expected, tmp_path / "chunks.ullage")
    assert_same(read_compact(tmp_path / "chunks.ullage"), expected)


def test_a_trace_that_says_the_same_all_over_is_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With a lower limit, so that it takes 20 thousand events instead of 20 million.
    monkeypatch.setattr(container, "_MIN_BYTES", 1 << 20)
    snapshot = read_raw(tmp_path, {"segments": [], "device_traces": [[event()]]})
    expected = repeat_events(snapshot, 20_000)
    write_compact(expected, tmp_path / "same.ullage")
    assert_same(read_compact(tmp_path / "same.ullage"), expected)


def repeat_events(snapshot: Snapshot, count: int) -> Snapshot:
    events = snapshot.events[0]
    columns = (np.repeat(getattr(events, name), count) for name in type(events).__slots__)
    return replace(snapshot, events=(type(events)(*columns),))


def edit_header(path: Path, change: Any) -> None:
    """Writes the header anew, its length and sum too: what an attacker would do."""
    content = path.read_bytes()
    magic, length, _ = PREFIX.unpack(content[: PREFIX.size])
    header = json.loads(content[PREFIX.size :][:length])
    changed = change(header)
    text = changed if isinstance(changed, bytes) else json.dumps(header).encode()
    prefix = PREFIX.pack(magic, len(text), zlib.crc32(text))
    path.write_bytes(prefix + text + content[PREFIX.size + length :])


def set_chunk(header: Any, column: str, **changes: Any) -> None:
    names = ("num_bytes", "width", "low", "is_delta", "first")
    row = header["columns"][column]
    row[1] = list((dict(zip(names, row[1], strict=True)) | changes).values())


CHANGES = {
    "a newer schema": (lambda h: h.update(schema="ullage.trace/2"), "trace/2'.*update ullage"),
    "no schema": (lambda h: h.pop("schema"), "schema is None"),
    "10^12 rows": (lambda h: h["columns"]["stacks.frame"].__setitem__(0, 10**12), "chunks for"),
    "10^12 rows and their chunks": (
        lambda h: h["columns"].update(
            {"blocks.state": [10**5 << 18, *h["columns"]["blocks.state"][1:] * 10**5]}
        ),
        "where .* are to be",
    ),
    "fewer rows": (lambda h: h["columns"]["stacks.frame"].__setitem__(0, 0), "chunks for 0 rows"),
    "other rows": (lambda h: h["columns"]["segments.address"].__setitem__(0, 2), "unpack to"),
    "a chunk longer than the file": (
        lambda h: set_chunk(h, "segments.address", num_bytes=10**15), "where .* are to be"
    ),
    "a negative chunk": (lambda h: set_chunk(h, "segments.address", num_bytes=-1), "no size"),
    "numbers of 9 bytes": (lambda h: set_chunk(h, "segments.address", width=9), "no size"),
    "a low of 10^30": (lambda h: set_chunk(h, "segments.address", low=10**30), "begins nowhere"),
    "addresses past the end": (
        lambda h: set_chunk(h, "segments.address", low=2**63 - 1), "beyond any address"
    ),
    "stacks that are not there": (
        lambda h: set_chunk(h, "events.0.stack", low=99, is_delta=False), "names stack"
    ),
    "pools that are not there": (
        lambda h: set_chunk(h, "segments.pool", low=99, is_delta=False), "names pool"
    ),
    "blocks of no segment": (
        lambda h: set_chunk(h, "blocks.segment", low=-1, first=0, is_delta=False), "names segment"
    ),
    "blocks past the end": (
        lambda h: set_chunk(h, "segments.first_block", first=1, low=1), "names first_block"
    ),
    "a missing column": (
        lambda h: h["columns"].update({"other": h["columns"].pop("annotations.device")}),
        "no column annotations.device",
    ),
    "no columns": (lambda h: h.pop("columns"), "does not list"),
    "columns that are a list": (lambda h: h.update(columns=[]), "does not list"),
    "no rest": (lambda h: h.update(rest=[-1, 5]), "does not list"),
    "a rest of 10^15 bytes": (lambda h: h["rest"].__setitem__(1, 10**15), "unpacks to 1000"),
    "a rest that is longer": (lambda h: h["rest"].__setitem__(1, 10**6), "does not unpack to"),
    "a rest that is shorter": (lambda h: h["rest"].__setitem__(1, 10), "does not unpack to"),
    "a list": (lambda _: b"[]", "schema is None"),
    "not JSON": (lambda _: b"{", "not JSON"),
    "not UTF-8": (lambda _: b'"\xff"', "not JSON"),
    "nesting": (lambda _: b"[" * 10**6, "not JSON"),
    "a number of 10^6 digits": (lambda _: b"1" * 10**6, "not JSON"),
}  # fmt: skip


@each("name", CHANGES)
def test_a_hostile_header_is_one_clear_error(path: Path, name: str) -> None:
    change, message = CHANGES[name]
    changed = path.with_name("changed.ullage")
    changed.write_bytes(path.read_bytes())
    edit_header(changed, change)
    with pytest.raises(SnapshotError, match=rf"^cannot read '.*\.ullage': its? .*({message})"):
        read_compact(changed)


def with_values(path: Path, values: Any) -> None:
    """The file with another pickle in it."""
    content = path.read_bytes()
    _, length, _ = PREFIX.unpack(content[: PREFIX.size])
    begin = PREFIX.size + length
    num_bytes = json.loads(content[PREFIX.size : begin])["rest"][0]
    raw = values if isinstance(values, bytes) else pickle.dumps(values, 4)
    packed = zlib.compress(raw)
    path.write_bytes(content[:begin] + packed + content[begin + num_bytes :])
    edit_header(path, lambda header: header.update(rest=[len(packed), len(raw)]))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("files", ["a.py", 5], "files are not texts"),
        ("texts", None, "texts are not texts"),
        ("texts", [], "no stack, pool or text 0"),
        ("pools", [[0, 0]], r"pools holds \[0, 0\]"),
        ("settings", [1], "settings is list, not dict"),
        ("functions", [], "frames have columns of several lengths"),
        ("annotation_names", [], "annotations have columns of several lengths"),
        ("num_devices", [10**9, 0], "devices"),
        ("num_devices", [3, 2], "no column host_events.1.action"),
        ("record", {"a": Path("a")}, "names pathlib"),
    ],
)
def test_hostile_values_are_one_clear_error(
    path: Path, snapshot: Snapshot, key: str, value: Any, message: str
) -> None:
    with_values(path, {**compact._values(snapshot), key: value})
    with pytest.raises(SnapshotError, match=rf"^cannot read '.*\.ullage': it.*{message}"):
        read_compact(path)


def test_a_file_cut_or_changed_at_any_byte_is_one_clear_error_or_reads_as_before(
    path: Path, snapshot: Snapshot
) -> None:
    content = path.read_bytes()
    for place in range(0, len(content), 11):
        path.write_bytes(content[:place])
        with pytest.raises(SnapshotError):
            read_snapshot(path)
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(SnapshotError):
            read_snapshot(path)
    path.write_bytes(content + b"\0")
    with pytest.raises(SnapshotError, match="cut off or changed"):
        read_snapshot(path)


def test_a_deflate_bomb_takes_no_more_than_it_may() -> None:
    bomb = zlib.compress(bytes(50 << 20), 9)
    with pytest.raises(SnapshotError, match="does not unpack to 1000 bytes"):
        inflate(bomb, 1000)


def test_a_file_that_would_unpack_to_too_much_is_refused_before_it_does(
    tmp_path: Path, run_apart: RunApart
) -> None:
    # 2^31 rows of zeros: 16 GiB. In a process of its own, whose peak tells.
    path = tmp_path / "bomb.ullage"
    code = (
        "import sys, numpy as np; from pathlib import Path\n"
        "from ullage.log.compact_format import container, compact\n"
        "chunk, content = container.pack_chunk(np.zeros(container.CHUNK_ROWS, np.uint8))\n"
        "many = (1 << 31) // container.CHUNK_ROWS\n"
        "packed = {'frames.line': [(chunk, content)] * many}\n"
        "container._pack_all = lambda columns, is_deflated: packed\n"
        "container._limit, kept = lambda size: 1 << 62, container._limit\n"
        "class Column:\n"
        "    def __len__(self): return 1 << 31\n"
        "with open(sys.argv[1], 'wb') as file:\n"
        "    container.write_columns(file, {'frames.line': Column()}, b'')\n"
        "container._limit = kept\n"
        "try: compact.read_compact(Path(sys.argv[1]))\n"
        "except Exception as error: print(error)\n"
    )
    message, peak_bytes = run_apart(code, path)
    assert "it unpacks to 17179869184 bytes, more than any snapshot of its size" in message
    assert peak_bytes < 256 * 2**20


def test_it_is_written_whole_or_not_at_all(
    tmp_path: Path, snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "kept.ullage"
    target.write_bytes(b"before")

    def fail(file: Any, *_: Any) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(compact, "write_columns", fail)
    with pytest.raises(SnapshotError, match=r"cannot write '.*kept\.ullage': No space left"):
        write_compact(snapshot, target)
    assert target.read_bytes() == b"before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept.ullage", "snapshot.pickle"]


def test_it_takes_the_place_of_a_file_and_of_nothing_else(
    tmp_path: Path, snapshot: Snapshot
) -> None:
    with pytest.raises(SnapshotError, match="not a regular file"):
        write_compact(snapshot, tmp_path)
    with pytest.raises(SnapshotError, match="not a regular file"):
        write_compact(snapshot, Path("/dev/null"))
    with pytest.raises(SnapshotError, match="No such file"):
        write_compact(snapshot, tmp_path / "missing" / "x.ullage")
    link = tmp_path / "link.ullage"
    link.symlink_to(tmp_path / "real.ullage")
    write_compact(snapshot, link)
    assert link.is_symlink() and (tmp_path / "real.ullage").is_file()


def test_what_is_missing_or_of_another_kind_is_told(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="No such file"):
        read_compact(tmp_path / "missing.ullage")
    other = tmp_path / "other.ullage"
    other.write_bytes(pickle.dumps({}))
    with pytest.raises(SnapshotError, match="not a compact file"):
        read_compact(other)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x1f\x8b\x08\x00", "compressed with gzip; .* `gunzip FILE`"),
        (lzma.compress(b"x"), "compressed with xz; .* `unxz FILE`"),
        (b"Traceback (most recent call last):\n", "text; expected what torch"),
        (b"PK\x03\x04", "a zip archive, as torch.save writes them; expected what torch"),
        (b"<!DOCTYPE html>", "HTML or XML; expected what .*not a page"),
        (b'{"segments": []}', "JSON; expected what .*which is a pickle"),
        (b"segments\n", "text; expected what torch"),
        (b"\x01segments\n", "not a pickle; expected what torch"),
    ],
)
def test_what_is_no_snapshot_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(SnapshotError, match=f"cannot read '.*other': it is {message}"):
        read_snapshot(path)
