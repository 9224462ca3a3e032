"""The log of work in a record: read as it was written, or refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ullage.ground.errors import SnapshotError
from ullage.log.work_log import ENTRY, EntryKind, WorkKind, parse_work_log


def fields(**changes: Any) -> dict[str, Any]:
    rows = np.array([(0, 0, -1, 3, 64, EntryKind.GIVEN, 1)], dtype=ENTRY)
    log = {
        "first": 7,
        "entries": rows.tobytes(),
        "captured": b"",
        "works": [[1, 14, "", [2, 3, 4, 1, 2], b""]],
    }
    return {"work_log": log | changes}


def test_it_is_read() -> None:
    log = parse_work_log(fields())
    assert log is not None
    assert log.first == 7 and log.entries["lane"].tolist() == [64] and len(log.captured) == 0
    assert log.works[0].kind is WorkKind.PRODUCT and log.works[0].numbers == (2, 3, 4, 1, 2)


def test_a_record_without_it() -> None:
    assert parse_work_log({}) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"entries": b"123"},
        {"entries": None},
        {"works": []},  # a row refers to the first
        {"works": [[99, 14, "", [], b""]]},
        {"works": [[1, 14, "", ["two"], b""]]},
        {"works": [[1, 14]]},
        {"first": -1},
        {"entries": np.array([(0, 0, 0, 0, 0, 77, 0)], dtype=ENTRY).tobytes()},
    ],
)
def test_a_damaged_one_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(SnapshotError):
        parse_work_log(fields(**changes))
