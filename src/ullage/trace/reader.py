"""Reads what a watched process wrote: `<pid>.record`, or the key "ullage" of a snapshot.

Both are pickles of plain values. A pickle may name any function to call while it is read; this
reader refuses every name, so that a file from somebody else can do no harm, and checks each field,
so that nothing beyond this module sees a dict.

    record = read_record(Path("4711.record"))
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from ullage.errors import SnapshotError
from ullage.trace import check
from ullage.trace.marks import parse_mark, parse_stop
from ullage.trace.model import (
    AssumedBytes,
    AssumedShape,
    Category,
    Claims,
    Copies,
    DeviceTotals,
    Events,
    ExitKind,
    GraphHolder,
    Holder,
    HostRead,
    OutOfMemory,
    OutsideBytes,
    PinnedLevels,
    ProgramExit,
    Record,
    Request,
    UInt32Array,
    Workspaces,
)
from ullage.trace.record_schema import ROWS, SCHEMA
from ullage.trace.work import parse_work

MAX_FILE_BYTES = 8 << 30
# 2^40 and more would let positions and sizes overflow 64 bits where they are combined.
MAX_EVENTS = 1 << 31
_WITH_GRAPH = 2


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
    fields = check.typed(value, dict, "the file")
    if "schema" not in fields and "ullage" in fields:
        fields = check.typed(fields["ullage"], dict, "ullage")
    schema = fields.get("schema")
    if schema != SCHEMA:
        raise SnapshotError(f"its schema is {schema!r}; this ullage reads {SCHEMA!r}")
    events = _parse_events(check.typed(fields.get("events"), dict, "events"))
    not_initialised = check.typed(fields.get("not_initialised", {}), dict, "not_initialised")
    return Record(
        **_parse_program(fields),
        devices=check.parse_rows(fields, "devices", _parse_device),
        first_position=check.position(fields.get("first_position"), "first_position"),
        events=events,
        marks=check.parse_rows(fields, "marks", parse_mark),
        claims=_parse_claims(check.rows(fields, "claims")),
        workspaces=_parse_workspaces(check.rows(fields, "workspaces")),
        modules=check.parse_texts(fields, "modules"),
        last_use=_parse_last_use(fields, len(events)),
        copies=_parse_copies(check.rows(fields, "copies")) if "copies" in fields else None,
        holders=check.parse_rows(fields, "holders", _parse_holder),
        graphs=check.parse_rows(fields, "graphs", _parse_graph),
        pinned=_parse_pinned(check.rows(fields, "pinned")) if "pinned" in fields else None,
        reads=check.parse_rows(fields, "reads", _parse_read),
        shapes=check.parse_rows(fields, "shapes", _parse_shape),
        assumed=check.parse_rows(fields, "assumed", _parse_assumed),
        refused=_parse_refused(check.typed(fields.get("refused", {}), dict, "refused")),
        num_not_initialised=check.size(not_initialised, "count", 0),
        not_initialised_bytes=check.size(not_initialised, "bytes", 0),
        ooms=check.parse_rows(fields, "ooms", _parse_oom),
        host_peak_bytes=check.size(fields, "host_peak_bytes", 0),
        host_needed_bytes=check.size(fields, "host_needed_bytes", 0),
        pinned_peak_bytes=check.size(fields, "pinned_peak_bytes", 0),
        warnings=check.parse_texts(fields, "warnings"),
        changed_variables=check.parse_texts(fields, "changed_variables"),
        groups=check.parse_rows(fields, "groups", _parse_group),
        num_not_yet=check.size(fields, "num_not_yet", 0),
        requests=check.parse_rows(fields, "requests", _parse_request),
        work=parse_work(fields),
    )


def _parse_request(entry: object) -> Request:
    where, begin, end, failure, is_out_of_memory = check.row(
        entry, len(ROWS["requests"]), "requests"
    )
    return Request(
        where=check.shown(where, "requests"),
        begin=check.position(begin, "requests"),
        end=check.position(end, "requests"),
        failure=check.shown(failure, "requests"),
        is_out_of_memory=check.typed(is_out_of_memory, bool, "requests"),
    )


def _parse_group(entry: object) -> tuple[int, ...]:
    return tuple(check.whole(rank, "groups") for rank in check.typed(entry, list, "groups"))


def _parse_program(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What ran, and how it ended."""
    return {
        "ullage": check.text(fields, "ullage"),
        "torch": check.text(fields, "torch"),
        "cuda": check.optional_text(fields, "cuda"),
        "python": check.text(fields, "python"),
        "argv": check.parse_texts(fields, "argv"),
        "pid": check.number(fields, "pid"),
        "rank": None if fields.get("rank") is None else check.number(fields, "rank"),
        "started_s": check.seconds(fields, "started_s"),
        "ended_s": check.seconds(fields, "ended_s"),
        "exit": _parse_exit(check.typed(fields.get("exit"), dict, "exit")),
    }


def _parse_events(fields: Mapping[str, Any]) -> Events:
    def column(name: str, dtype: str) -> np.ndarray[Any, Any]:
        raw = check.typed(fields.get(name), bytes, f"events.{name}")
        width = np.dtype(dtype).itemsize
        if len(raw) % width or len(raw) // width > MAX_EVENTS:
            raise SnapshotError(
                f"events.{name} has {len(raw)} bytes, not a whole number of {width}-byte entries"
            )
        return np.frombuffer(raw, dtype=dtype)

    device, kind = column("device", "u1"), column("kind", "u1")
    events = Events(
        address=column("address", "<i8"),
        size_bytes=column("bytes", "<i8"),
        reserved_bytes=column("reserved", "<i8"),
        device=device,
        kind=kind & ~np.uint8(_WITH_GRAPH),
        # A record from before there were modules has none.
        scope=column("scope", "<i4") if "scope" in fields else np.full(len(device), -1, "<i4"),
        has_graph=(kind & _WITH_GRAPH) != 0,
    )
    lengths = {
        len(events.address),
        len(events.size_bytes),
        len(events.reserved_bytes),
        len(events.device),
        len(events.kind),
        len(events.scope),
    }
    if len(lengths) != 1:
        raise SnapshotError(f"its event columns have different lengths: {sorted(lengths)}")
    return events


def _parse_last_use(fields: Mapping[str, Any], num_events: int) -> UInt32Array | None:
    if "last_uses" not in fields:
        return None
    raw = check.typed(fields["last_uses"], bytes, "last_uses")
    if len(raw) != 4 * num_events:
        raise SnapshotError(
            f"last_uses has {len(raw)} bytes, not 4 for each of {num_events} events"
        )
    return np.frombuffer(raw, dtype="<u4")


def _parse_exit(fields: Mapping[str, Any]) -> ProgramExit:
    return ProgramExit(
        kind=check.choice(ExitKind, fields.get("kind"), "exit.kind"),
        exception=check.optional_text(fields, "exception"),
        message=check.optional_lines(fields, "message"),
        where=check.optional_text(fields, "where"),
        code=check.number(fields, "code", 0),
        stop=parse_stop(fields),
    )


def _parse_device(value: object) -> DeviceTotals:
    fields = check.typed(value, dict, "devices")
    return DeviceTotals(
        index=check.number(fields, "index"),
        name=check.text(fields, "name"),
        total_bytes=check.size(fields, "total_bytes"),
        context_bytes=check.size(fields, "context_bytes"),
        non_torch_bytes=check.size(fields, "non_torch_bytes"),
        peak_requested_bytes=check.size(fields, "peak_requested_bytes"),
        peak_allocated_bytes=check.size(fields, "peak_allocated_bytes"),
        peak_reserved_bytes=check.size(fields, "peak_reserved_bytes"),
        num_allocs=check.size(fields, "num_allocs"),
        num_segments=check.size(fields, "num_segments"),
        num_ooms=check.size(fields, "num_ooms"),
        num_alloc_retries=check.size(fields, "num_alloc_retries"),
        outside=check.parse_rows(fields, "outside", _parse_outside),
    )


def _parse_outside(value: object) -> OutsideBytes:
    fields = check.typed(value, dict, "outside")
    return OutsideBytes(
        what=check.text(fields, "what"),
        count=check.size(fields, "count"),
        low_bytes=check.size(fields, "low_bytes"),
        high_bytes=check.size(fields, "high_bytes"),
    )


def _parse_claims(rows: Sequence[object]) -> Claims:
    columns = check.columns(rows, len(ROWS["claims"]), "claims")
    return Claims(
        position=check.position_column(columns[0], "claims"),
        device=check.int_column(columns[1], "claims"),
        address=check.int_column(columns[2], "claims"),
        category=tuple(check.choice(Category, text, "claims") for text in columns[3]),
        name=tuple(check.shown(text, "claims") for text in columns[4]),
    )


def _parse_workspaces(rows: Sequence[object]) -> Workspaces:
    columns = check.columns(rows, len(ROWS["workspaces"]), "workspaces")
    return Workspaces(
        position=check.position_column(columns[0], "workspaces"),
        device=check.int_column(columns[1], "workspaces"),
        address=check.int_column(columns[2], "workspaces"),
        size_bytes=check.int_column(columns[3], "workspaces"),
        library=tuple(check.shown(text, "workspaces") for text in columns[4]),
    )


def _parse_copies(rows: Sequence[object]) -> Copies:
    position, device, address, size, stream, flags = (
        check.int_column(column, "copies")
        for column in check.columns(rows, len(ROWS["copies"]), "copies")
    )
    return Copies(
        position=position,
        device=device,
        address=address,
        size_bytes=size,
        stream=stream,
        is_to_device=(flags & 1) != 0,
        is_pinned=(flags & 2) != 0,
        is_waited_for=(flags & 4) != 0,
    )


def _parse_pinned(rows: Sequence[object]) -> PinnedLevels:
    position, size = (
        check.int_column(column, "pinned")
        for column in check.columns(rows, len(ROWS["pinned"]), "pinned")
    )
    return PinnedLevels(position=position, size_bytes=size)


def _parse_holder(value: object) -> Holder:
    position, device, address, chain = check.row(value, len(ROWS["holders"]), "holders")
    return Holder(
        position=check.position(position, "holders"),
        device=check.whole(device, "holders"),
        address=check.whole(address, "holders"),
        chain=check.shown(chain, "holders"),
    )


def _parse_graph(value: object) -> GraphHolder:
    position, num_nodes, chain = check.row(value, len(ROWS["graphs"]), "graphs")
    return GraphHolder(
        position=check.position(position, "graphs"),
        num_nodes=check.whole(num_nodes, "graphs"),
        chain=check.shown(chain, "graphs"),
    )


def _parse_read(value: object) -> HostRead:
    fields = check.typed(value, dict, "reads")
    return HostRead(
        what=check.text(fields, "what"),
        where=check.optional_text(fields, "where") or "",
        count=check.size(fields, "count"),
        size_bytes=check.size(fields, "bytes", 0),
        answer=check.optional_text(fields, "answer") or "answered as zeros",
    )


def _parse_shape(value: object) -> AssumedShape:
    fields = check.typed(value, dict, "shapes")
    return AssumedShape(
        what=check.text(fields, "what"),
        where=check.optional_text(fields, "where") or "",
        count=check.size(fields, "count"),
        size_bytes=check.size(fields, "bytes", 0),
        assumption=check.optional_text(fields, "assumption") or "",
    )


def _parse_assumed(value: object) -> AssumedBytes:
    fields = check.typed(value, dict, "assumed")
    return AssumedBytes(
        what=check.text(fields, "what"),
        count=check.size(fields, "count"),
        low_bytes=check.size(fields, "low_bytes"),
        answered_bytes=check.size(fields, "answered_bytes"),
        high_bytes=check.size(fields, "high_bytes"),
    )


def _parse_refused(fields: Mapping[Any, Any]) -> tuple[tuple[str, int], ...]:
    return tuple(
        (check.shown(name, "refused"), check.whole(count, "refused"))
        for name, count in fields.items()
    )


def _parse_oom(value: object) -> OutOfMemory:
    fields = check.typed(value, dict, "ooms")
    return OutOfMemory(
        position=check.position(fields.get("position"), "ooms"),
        device=check.number(fields, "device"),
        requested_bytes=check.size(fields, "requested_bytes"),
        message=check.optional_lines(fields, "message"),
        where=check.optional_text(fields, "where"),
        ended=check.optional_text(fields, "ended"),
    )
