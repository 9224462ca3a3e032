"""Reads what a watched process wrote: `<pid>.record`, or the key "ullage" of a snapshot.

Both are pickles of plain values. A pickle may name any function to call while it is read; this
reader refuses every name, so that a file from somebody else can do no harm, and checks each field,
so that nothing beyond this module sees a dict.

    record = read_record(Path("4711.record"))
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np

from ullage.errors import SnapshotError
from ullage.trace.model import (
    AssumedBytes,
    AssumedShape,
    Category,
    Claims,
    DeviceTotals,
    Events,
    ExitKind,
    HostRead,
    Mark,
    MarkKind,
    OutOfMemory,
    ProgramExit,
    Record,
    Workspaces,
)

SCHEMA = "ullage.record/1"
MAX_FILE_BYTES = 8 << 30
# 2^40 and more would let positions and sizes overflow 64 bits where they are combined.
MAX_EVENTS = 1 << 31

T = TypeVar("T")


class _PlainUnpickler(pickle.Unpickler):
    """Reads numbers, texts, bytes, lists and dicts; refuses what would need an import."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise SnapshotError(
            f"the file names {module}.{name}; a memory record holds plain values only, so it was "
            "not read"
        )

    def persistent_load(self, pid: object) -> NoReturn:
        raise SnapshotError(f"the file refers to an outside object ({pid!r}); it was not read")


def read_record(path: Path) -> Record:
    """Reads the record of one process.

    Raises:
        SnapshotError: the file is missing, too large, not a record, or damaged.
    """
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise SnapshotError(
                f"it has {size} bytes, more than the {MAX_FILE_BYTES} that are read"
            )
        with path.open("rb") as file:
            value = _PlainUnpickler(file).load()
        return parse_record(value)
    except SnapshotError as error:
        raise SnapshotError(f"cannot read {str(path)!r}: {error}") from None
    except OSError as error:
        raise SnapshotError(f"cannot read {str(path)!r}: {error.strerror or error}") from None
    except Exception as error:  # a damaged pickle raises nearly anything, MemoryError included
        raise SnapshotError(
            f"cannot read {str(path)!r}: not a record of ullage, or damaged "
            f"({type(error).__name__}: {error})"
        ) from None


def parse_record(value: object) -> Record:
    """Checks what a watched process wrote, as plain values, and takes it apart.

    Raises:
        SnapshotError: it is not a record, of another schema, or damaged.
    """
    fields = _as(value, dict, "the file")
    if "schema" not in fields and "ullage" in fields:
        fields = _as(fields["ullage"], dict, "ullage")
    schema = fields.get("schema")
    if schema != SCHEMA:
        raise SnapshotError(f"its schema is {schema!r}; this ullage reads {SCHEMA!r}")
    events = _parse_events(_as(fields.get("events"), dict, "events"))
    not_initialised = _as(fields.get("not_initialised", {}), dict, "not_initialised")
    return Record(
        ullage=_text(fields, "ullage"),
        torch=_text(fields, "torch"),
        cuda=_optional_text(fields, "cuda"),
        python=_text(fields, "python"),
        argv=_parse_texts(fields, "argv"),
        pid=_number(fields, "pid"),
        rank=None if fields.get("rank") is None else _number(fields, "rank"),
        started_s=_seconds(fields, "started_s"),
        ended_s=_seconds(fields, "ended_s"),
        exit=_parse_exit(_as(fields.get("exit"), dict, "exit")),
        devices=_parse_rows(fields, "devices", _parse_device),
        first_position=_number(fields, "first_position"),
        events=events,
        marks=_parse_rows(fields, "marks", _parse_mark),
        claims=_parse_claims(_rows(fields, "claims")),
        workspaces=_parse_workspaces(_rows(fields, "workspaces")),
        reads=_parse_rows(fields, "reads", _parse_read),
        shapes=_parse_rows(fields, "shapes", _parse_shape),
        assumed=_parse_rows(fields, "assumed", _parse_assumed),
        refused=_parse_refused(_as(fields.get("refused", {}), dict, "refused")),
        num_not_initialised=_number(not_initialised, "count", 0),
        not_initialised_bytes=_number(not_initialised, "bytes", 0),
        ooms=_parse_rows(fields, "ooms", _parse_oom),
        host_peak_bytes=_number(fields, "host_peak_bytes", 0),
        host_needed_bytes=_number(fields, "host_needed_bytes", 0),
        pinned_peak_bytes=_number(fields, "pinned_peak_bytes", 0),
        warnings=_parse_texts(fields, "warnings"),
        changed_variables=_parse_texts(fields, "changed_variables"),
    )


def _parse_events(fields: Mapping[str, Any]) -> Events:
    def column(name: str, dtype: str) -> np.ndarray[Any, Any]:
        raw = _as(fields.get(name), bytes, f"events.{name}")
        width = np.dtype(dtype).itemsize
        if len(raw) % width or len(raw) // width > MAX_EVENTS:
            raise SnapshotError(
                f"events.{name} has {len(raw)} bytes, not a whole number of {width}-byte entries"
            )
        return np.frombuffer(raw, dtype=dtype)

    events = Events(
        address=column("address", "<i8"),
        size_bytes=column("bytes", "<i8"),
        reserved_bytes=column("reserved", "<i8"),
        device=column("device", "u1"),
        kind=column("kind", "u1"),
    )
    lengths = {
        len(events.address),
        len(events.size_bytes),
        len(events.reserved_bytes),
        len(events.device),
        len(events.kind),
    }
    if len(lengths) != 1:
        raise SnapshotError(f"its event columns have different lengths: {sorted(lengths)}")
    return events


def _parse_exit(fields: Mapping[str, Any]) -> ProgramExit:
    return ProgramExit(
        kind=_choice(ExitKind, fields.get("kind"), "exit.kind"),
        exception=_optional_text(fields, "exception"),
        message=_optional_text(fields, "message"),
        where=_optional_text(fields, "where"),
        code=_number(fields, "code", 0),
    )


def _parse_device(value: object) -> DeviceTotals:
    fields = _as(value, dict, "devices")
    return DeviceTotals(
        index=_number(fields, "index"),
        name=_text(fields, "name"),
        total_bytes=_number(fields, "total_bytes"),
        context_bytes=_number(fields, "context_bytes"),
        non_torch_bytes=_number(fields, "non_torch_bytes"),
        peak_requested_bytes=_number(fields, "peak_requested_bytes"),
        peak_allocated_bytes=_number(fields, "peak_allocated_bytes"),
        peak_reserved_bytes=_number(fields, "peak_reserved_bytes"),
        num_allocs=_number(fields, "num_allocs"),
        num_segments=_number(fields, "num_segments"),
        num_ooms=_number(fields, "num_ooms"),
        num_alloc_retries=_number(fields, "num_alloc_retries"),
    )


def _parse_mark(value: object) -> Mark:
    position, kind_text, payload = _row(value, 3, "marks")
    kind = _choice(MarkKind, kind_text, "marks")
    grad = index = None
    if kind is MarkKind.FORWARD_BEGIN and isinstance(payload, dict):
        grad = bool(payload.get("grad", True))
    if kind is MarkKind.STEP and isinstance(payload, int):
        index = payload
    return Mark(position=_as(position, int, "marks"), kind=kind, grad=grad, index=index)


def _parse_claims(rows: Sequence[object]) -> Claims:
    columns = _columns(rows, 5, "claims")
    return Claims(
        position=_int_column(columns[0], "claims"),
        device=_int_column(columns[1], "claims"),
        address=_int_column(columns[2], "claims"),
        category=tuple(_choice(Category, text, "claims") for text in columns[3]),
        name=tuple(_as(text, str, "claims") for text in columns[4]),
    )


def _parse_workspaces(rows: Sequence[object]) -> Workspaces:
    columns = _columns(rows, 5, "workspaces")
    return Workspaces(
        position=_int_column(columns[0], "workspaces"),
        device=_int_column(columns[1], "workspaces"),
        address=_int_column(columns[2], "workspaces"),
        size_bytes=_int_column(columns[3], "workspaces"),
        library=tuple(_as(text, str, "workspaces") for text in columns[4]),
    )


def _parse_read(value: object) -> HostRead:
    fields = _as(value, dict, "reads")
    return HostRead(
        what=_text(fields, "what"),
        where=_optional_text(fields, "where") or "",
        count=_number(fields, "count"),
        size_bytes=_number(fields, "bytes", 0),
    )


def _parse_shape(value: object) -> AssumedShape:
    fields = _as(value, dict, "shapes")
    return AssumedShape(
        what=_text(fields, "what"),
        where=_optional_text(fields, "where") or "",
        count=_number(fields, "count"),
        size_bytes=_number(fields, "bytes", 0),
        assumption=_optional_text(fields, "assumption") or "",
    )


def _parse_assumed(value: object) -> AssumedBytes:
    fields = _as(value, dict, "assumed")
    return AssumedBytes(
        what=_text(fields, "what"),
        count=_number(fields, "count"),
        low_bytes=_number(fields, "low_bytes"),
        answered_bytes=_number(fields, "answered_bytes"),
        high_bytes=_number(fields, "high_bytes"),
    )


def _parse_refused(fields: Mapping[Any, Any]) -> tuple[tuple[str, int], ...]:
    return tuple(
        (_as(name, str, "refused"), _as(count, int, "refused")) for name, count in fields.items()
    )


def _parse_oom(value: object) -> OutOfMemory:
    fields = _as(value, dict, "ooms")
    return OutOfMemory(
        position=_number(fields, "position"),
        device=_number(fields, "device"),
        requested_bytes=_number(fields, "requested_bytes"),
        message=_optional_text(fields, "message"),
        where=_optional_text(fields, "where"),
    )


def _as(value: object, kind: type[T], name: str) -> T:
    if not isinstance(value, kind):
        raise SnapshotError(f"{name} is {type(value).__name__}, not {kind.__name__}")
    return value


def _text(fields: Mapping[str, Any], name: str) -> str:
    return _as(fields.get(name), str, name)


def _optional_text(fields: Mapping[str, Any], name: str) -> str | None:
    return None if fields.get(name) is None else _text(fields, name)


def _number(fields: Mapping[str, Any], name: str, fallback: int | None = None) -> int:
    value = fields.get(name)
    if value is None and fallback is not None:
        return fallback
    number = _as(value, int, name)
    if abs(number) >= 1 << 63:
        raise SnapshotError(f"{name} is {number}, more than 64 bits hold")
    return number


def _seconds(fields: Mapping[str, Any], name: str) -> float:
    value = fields.get(name)
    return float(value) if isinstance(value, int) else _as(value, float, name)


def _choice(choices: type[T], value: object, name: str) -> T:
    try:
        return choices(value)  # type: ignore[call-arg]
    except ValueError:
        raise SnapshotError(
            f"{name} holds {value!r}, which this ullage does not know; is it newer?"
        ) from None


def _rows(fields: Mapping[str, Any], name: str) -> Sequence[object]:
    value = fields.get(name, ())
    if not isinstance(value, list | tuple):
        raise SnapshotError(f"{name} is {type(value).__name__}, not a list")
    return value


def _row(value: object, width: int, name: str) -> Sequence[Any]:
    if not isinstance(value, list | tuple) or len(value) != width:
        raise SnapshotError(f"{name} holds an entry that is not {width} values: {value!r:.80}")
    return value


def _parse_rows(
    fields: Mapping[str, Any], name: str, parse: Callable[[object], T]
) -> tuple[T, ...]:
    return tuple(parse(row) for row in _rows(fields, name))


def _parse_texts(fields: Mapping[str, Any], name: str) -> tuple[str, ...]:
    return _parse_rows(fields, name, lambda text: _as(text, str, name))


def _columns(rows: Sequence[object], width: int, name: str) -> Sequence[Sequence[Any]]:
    checked = [_row(row, width, name) for row in rows]
    return list(zip(*checked, strict=True)) if checked else [()] * width


def _int_column(values: Sequence[Any], name: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    if not all(isinstance(value, int) for value in values):
        raise SnapshotError(f"{name} holds a number that is not an integer")
    return np.array(values, dtype=np.int64)
