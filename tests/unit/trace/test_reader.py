"""A record is read whole, or refused with a reason; nothing in it is ever run."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ullage.ground.errors import SnapshotError
from ullage.log.model import Category, ExitKind, MarkKind
from ullage.log.reader import read_record

Fields = Callable[..., dict[str, Any]]


def write(path: Path, value: object) -> Path:
    path.write_bytes(pickle.dumps(value))
    return path


def test_a_record_comes_back_as_it_was_written(tmp_path: Path, make_fields: Fields) -> None:
    record = read_record(write(tmp_path / "1.record", make_fields("+4 =parameter F +2 f !9 S")))
    assert record.events.size_bytes.tolist() == [4, 2, 9]
    assert record.events.kind.tolist() == [0, 0, 1]
    assert [(mark.position, mark.kind) for mark in record.marks] == [
        (1, MarkKind.FORWARD_BEGIN),
        (2, MarkKind.FORWARD_END),
        (3, MarkKind.STEP),
    ]
    assert record.marks[0].grad is True
    assert record.claims.category == (Category.PARAMETER,)
    assert record.exit.kind is ExitKind.RETURNED
    assert record.ooms[0].requested_bytes == 9


def test_a_snapshot_that_carries_the_record_is_read_too(
    tmp_path: Path, make_fields: Fields
) -> None:
    snapshot = {"segments": [], "device_traces": [[]], "ullage": make_fields("+4")}
    assert len(read_record(write(tmp_path / "1.snapshot.pickle", snapshot)).events) == 1


class Evil:
    """Runs a command when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.mark,))


def test_a_pickle_that_would_run_something_is_refused_and_does_not(tmp_path: Path) -> None:
    path = write(tmp_path / "1.record", {"schema": Evil(tmp_path / "ran")})
    with pytest.raises(SnapshotError, match="plain values only"):
        read_record(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": "ullage.record/99"}, "reads 'ullage.record/1'"),
        ({"pid": "4711"}, "the record.pid is '4711'; expected a whole number"),
        ({"pid": 1 << 70}, "expected a number from 0 to"),
        ({"marks": [[0, "lunch", None]]}, "'lunch'"),
        ({"marks": [[0, "step"]]}, "not 3 values"),
        (
            {"claims": [[0, 0, "x", "parameter", ""]]},
            "claims.address is 'x'; expected a whole number",
        ),
        ({"claims": [[0, 0, 1, "furniture", ""]]}, "'furniture'"),
        ({"devices": None}, "devices is None; expected a list"),
        ({"exit": []}, "exit is .*; expected"),
    ],
)
def test_a_malformed_field_is_named(
    tmp_path: Path, make_fields: Fields, changes: dict[str, Any], message: str
) -> None:
    path = write(tmp_path / "1.record", make_fields("+4", **changes))
    with pytest.raises(SnapshotError, match=message):
        read_record(path)


def test_columns_of_different_lengths_are_refused(tmp_path: Path, make_fields: Fields) -> None:
    fields = make_fields("+4 +4")
    fields["events"]["device"] = b"\0"
    with pytest.raises(SnapshotError, match="different lengths"):
        read_record(write(tmp_path / "1.record", fields))


@pytest.mark.parametrize("content", [b"", b"hello", b"\x80\x05", pickle.dumps([1])])
def test_a_file_that_is_no_record_says_so(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "1.record"
    path.write_bytes(content)
    with pytest.raises(SnapshotError, match=r"cannot read .*1\.record"):
        read_record(path)


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="No such file"):
        read_record(tmp_path / "none.record")
