"""The reader reads the fields of the schema, all of them and no others."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict

import pytest
from tests.rows import each

from ullage.ground.errors import SnapshotError
from ullage.log.model import Record
from ullage.log.reader import parse_record
from ullage.log.record_schema import REQUIRED_KEYS, ROWS, RecordFields

Fields = Callable[..., dict[str, Any]]
INTERVAL = ["outside", "cuFFT", "", 1, 1, 3, 3]
# Parts that the builder of records leaves out.
REST: dict[str, Any] = {
    "exit": {
        "kind": "steps_reached", "exception": None, "message": None, "where": None, "code": 0,
        "steps": {"count": 3, "kind": "training"},
    },
    "requests": [["requests.jsonl:1", 0, 1, "", False]],
    "attempts": [[[0], [-4, 2]]],
    "recipe": [["batch", "8"]],
    "scratch": [[0, 0, 1 << 30, 0, 4, 8, "cuFFT work area"]],
    "copies": [[0, 0, 1 << 30, 4, 0, 1]],
    "pinned": [[0, 4]],
    "pinned_low": [[0, 4]],
    "num_lost_copies": 0,
    "batch_waits": {"num_workers": 2, "waits": [[0, 3, 0.5, 0.25, 0.0, 0.125]]},
    "measured": {
        "mode": "full", "driver": "580.95.05", "num_lost": 0, "step_peaks": [[0, 3, 4, 8, 0.5]],
        "num_others": [2, None], "is_phantom": True,
        "kernels": [["add", "", [8, 1, 1, 128], 2, 0.5]],
        "pressure": {
            "step_times": [[500, 3, 3, 1, 1]],
            "windows": [[0, 3, 0.0, 0.5, 4, 8, 2, 1, 2]],
            "window_times": [[0, 500, 3]],
            "num_recent": 1000, "has_device_frees": True, "num_requests": 1,
            "request_times": [["chat", 600, 1, 1]],
            "last_requests": [["chat", 0.1, 0.2, 1, 2, 4, 2, 2, 2, 3, 0, False]],
            "token_growth": [[1, 2], [2, 3]],
        },
    },
    "holders": [[0, 0, 1 << 30, "x in train()"]],
    "graphs": [[0, 3, "loss in train()"]],
    "basis": [INTERVAL],
    "host_needed_bytes": 1,
    "pinned_low_peak_bytes": 1,
    "pinned_asked_peak_bytes": 1,
    "groups": [[0, 1]],
    "num_not_yet": 0,
    "operands": [[0, 0, 1 << 30]],
    "num_timed": 0,
    "work_log": {"first": 0, "entries": b"", "captured": b"", "works": []},
}  # fmt: skip


class Noting(dict[str, Any]):
    """A dict that notes which of its keys are asked for."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__(values)
        self.asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """As a dict."""
        self.asked.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)


def noting(value: Any, kind: Any) -> Any:
    """A value with each dict that has a type of the schema as a `Noting`."""
    if get_origin(kind) is list:
        return [noting(entry, get_args(kind)[0]) for entry in value]
    if is_typeddict(kind):
        hints = get_type_hints(kind)
        return Noting({key: noting(entry, hints.get(key)) for key, entry in value.items()})
    return value


def unread(value: Any, kind: Any, path: str) -> Iterator[str]:
    """Where the keys that were asked for are not those of the schema."""
    if get_origin(kind) is list:
        for entry in value:
            yield from unread(entry, get_args(kind)[0], f"{path}[]")
    elif isinstance(value, Noting):
        hints = get_type_hints(kind)
        # Of a snapshot's parts the reader looks for one more, "ullage", which a record has as well.
        yield from (f"{path}: {key}" for key in sorted(value.asked ^ set(hints)))
        for key in hints:
            yield from unread(dict.get(value, key), hints[key], f"{path}.{key}")


@pytest.fixture
def whole(make_fields: Fields) -> dict[str, Any]:
    """A record with every field of the schema."""
    fields = make_fields("+4 =parameter w F f:4 !9 S u4", **REST)
    fields["devices"][0] |= {"outside": [INTERVAL], "peak_of_all_bytes": 8, "place": 0}
    fields["ooms"][0]["ended"] = "thread 'loader'"
    fields["events"]["precision"] = bytes(len(fields["events"]["kind"]))
    return fields


def test_the_record_of_this_test_is_that_of_the_schema(
    whole: dict[str, Any], schema_differences: Callable[[dict[str, Any]], list[str]]
) -> None:
    assert schema_differences(whole) == []
    measured = whole["measured"]
    rows = whole | measured | measured["pressure"] | whole["batch_waits"]
    assert all(rows[name] for name in ROWS)


def test_the_reader_reads_what_the_schema_has(whole: dict[str, Any]) -> None:
    fields = noting(whole, RecordFields)
    parse_record(fields)
    assert list(unread(fields, RecordFields, "record")) == []


@each("key", sorted(RecordFields.__annotations__))
def test_fields_that_came_later_may_be_missing(whole: dict[str, Any], key: str) -> None:
    fewer = {name: value for name, value in deepcopy(whole).items() if name != key}
    if key in REQUIRED_KEYS:
        with pytest.raises(SnapshotError):
            parse_record(fewer)
    else:
        assert isinstance(parse_record(fewer), Record)


def test_the_schema_needs_the_standard_library_alone() -> None:
    code = (
        "import sys, ullage.log.record_schema; "
        "assert not {'numpy', 'torch', 'ullage.log.model'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
