"""Reads what a watched process wrote: `<pid>.record`, or the key "ullage" of a snapshot.

Both are pickles of plain values. A pickle may name any function to call while it is read; this
reader refuses every name, so that a file from somebody else can do no harm, and checks each field,
so that nothing beyond this module sees a dict.

    record = read_record(Path("4711.record"))
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from ullage.errors import SnapshotError
from ullage.printable import hide_secrets
from ullage.trace import field_checks
from ullage.trace.marks import parse_mark, parse_stop
from ullage.trace.model import (
    AssumedBytes,
    AssumedShape,
    Category,
    Claims,
    Copies,
    DeviceTotals,
    EventKind,
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
)
from ullage.trace.record_schema import ROWS, SCHEMA
from ullage.trace.workspaces import parse_scratch, parse_workspaces

MAX_FILE_BYTES = 8 << 30
# 2^40 and more would let positions and sizes overflow 64 bits where they are combined.
MAX_EVENTS = 1 << 31
_WITH_GRAPH, _WAS_KEPT = 2, 4


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
    fields = field_checks.typed(value, dict, "the file")
    if "schema" not in fields and "ullage" in fields:
        fields = field_checks.typed(fields["ullage"], dict, "ullage")
    schema = fields.get("schema")
    if schema != SCHEMA:
        raise SnapshotError(f"its schema is {schema!r}; this ullage reads {SCHEMA!r}")
    events = _parse_events(field_checks.typed(fields.get("events"), dict, "events"))
    return field_checks.parse_record(
        Record,
        fields,
        "the record",
        argv=hide_secrets(field_checks.parse_texts(fields, "argv")),
        exit=_parse_exit(field_checks.typed(fields.get("exit"), dict, "exit")),
        devices=field_checks.parse_rows(fields, "devices", _parse_device),
        events=events,
        marks=field_checks.parse_rows(fields, "marks", parse_mark),
        claims=_parse_claims(field_checks.rows(fields, "claims")),
        workspaces=parse_workspaces(field_checks.rows(fields, "workspaces")),
        last_use=_parse_last_use(fields, len(events)),
        **_parse_usage(fields),
        holders=field_checks.parse_all(Holder, fields, "holders"),
        graphs=field_checks.parse_all(GraphHolder, fields, "graphs"),
        reads=field_checks.parse_all(HostRead, fields, "reads"),
        shapes=field_checks.parse_all(AssumedShape, fields, "shapes"),
        assumed=field_checks.parse_all(AssumedBytes, fields, "assumed"),
        refused=_parse_refused(field_checks.typed(fields.get("refused", {}), dict, "refused")),
        **_parse_not_initialised(fields),
        **_parse_ooms(fields, events),
        attempts=field_checks.parse_rows(fields, "attempts", _parse_attempts),
        recipe=field_checks.parse_rows(fields, "recipe", _parse_choice),
        **_parse_optional(fields),
        groups=field_checks.parse_rows(fields, "groups", _parse_group),
        operands=field_checks.parse_rows(fields, "operands", _parse_operand),
        requests=field_checks.parse_all(Request, fields, "requests"),
    )


def _parse_optional(fields: Mapping[str, Any]) -> dict[str, Any]:
    # A module for each field that few records have, which is imported for those alone.
    rare = ("work_log", "measured", "batch_waits")
    return {
        name: getattr(import_module(f"ullage.trace.{name}"), f"parse_{name}")(fields)
        for name in rare
        if name in fields
    }


def _parse_not_initialised(fields: Mapping[str, Any]) -> dict[str, Any]:
    counted = field_checks.typed(fields.get("not_initialised", {}), dict, "not_initialised")
    return {
        "num_not_initialised": field_checks.size(counted, "count", 0),
        "not_initialised_bytes": field_checks.size(counted, "bytes", 0),
    }


def _parse_attempts(entry: object) -> tuple[tuple[int, ...], tuple[int, ...]]:
    columns = (
        field_checks.typed(column, list, "attempts")
        for column in field_checks.row(entry, len(ROWS["attempts"]), "attempts")
    )
    failures, sizes = (
        tuple(field_checks.whole(value, "attempts") for value in column) for column in columns
    )
    return failures, sizes


def _parse_choice(entry: object) -> tuple[str, str]:
    name, value = field_checks.row(entry, len(ROWS["recipe"]), "recipe")
    return field_checks.shown(name, "recipe"), field_checks.shown(value, "recipe")


def _parse_group(entry: object) -> tuple[int, ...]:
    ranks = field_checks.typed(entry, list, "groups")
    return tuple(field_checks.whole(rank, "groups") for rank in ranks)


def _parse_operand(entry: object) -> tuple[int, int, int]:
    position, device, address = field_checks.row(entry, len(ROWS["operands"]), "operands")
    whole = field_checks.whole
    return whole(position, "operands"), whole(device, "operands"), whole(address, "operands")


def _parse_events(fields: Mapping[str, Any]) -> Events:
    def column(name: str, dtype: str) -> np.ndarray[Any, Any]:
        raw = field_checks.typed(fields.get(name), bytes, f"events.{name}")
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
        kind=kind & ~np.uint8(_WITH_GRAPH | _WAS_KEPT),
        # A record from before there were modules has none.
        scope=column("scope", "<i4") if "scope" in fields else np.full(len(device), -1, "<i4"),
        has_graph=(kind & _WITH_GRAPH) != 0,
        was_kept=(kind & _WAS_KEPT) != 0,
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
    raw = field_checks.typed(fields["last_uses"], bytes, "last_uses")
    if len(raw) != 4 * num_events:
        raise SnapshotError(
            f"last_uses has {len(raw)} bytes, not 4 for each of {num_events} events"
        )
    return np.frombuffer(raw, dtype="<u4")


def _parse_exit(fields: Mapping[str, Any]) -> ProgramExit:
    kind = field_checks.choice(ExitKind, fields.get("kind"), "exit.kind")
    stop = parse_stop(fields)
    return field_checks.parse_record(ProgramExit, fields, "exit", kind=kind, stop=stop)


def _parse_device(value: object) -> DeviceTotals:
    fields = field_checks.typed(value, dict, "devices")
    outside = field_checks.parse_all(OutsideBytes, fields, "outside")
    return field_checks.parse_record(DeviceTotals, fields, "devices", outside=outside, num_others=0)


def _parse_claims(rows: Sequence[object]) -> Claims:
    columns = field_checks.columns(rows, len(ROWS["claims"]), "claims")
    return Claims(
        position=field_checks.position_column(columns[0], "claims"),
        device=field_checks.int_column(columns[1], "claims"),
        address=field_checks.int_column(columns[2], "claims"),
        category=tuple(field_checks.choice(Category, text, "claims") for text in columns[3]),
        name=tuple(field_checks.shown(text, "claims") for text in columns[4]),
    )


def _parse_usage(fields: Mapping[str, Any]) -> dict[str, Any]:
    parsers = {"scratch": parse_scratch, "copies": _parse_copies}
    pinned = partial(field_checks.parse_columns, PinnedLevels, name="pinned")
    parsers |= dict.fromkeys(("pinned", "pinned_low"), pinned)
    names = [name for name in parsers if name in fields]
    return {name: parsers[name](field_checks.rows(fields, name)) for name in names}


def _parse_copies(rows: Sequence[object]) -> Copies:
    position, device, address, size, stream, flags = (
        field_checks.int_column(column, "copies")
        for column in field_checks.columns(rows, len(ROWS["copies"]), "copies")
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


def _parse_refused(fields: Mapping[Any, Any]) -> tuple[tuple[str, int], ...]:
    return tuple(
        (field_checks.shown(name, "refused"), field_checks.whole(count, "refused"))
        for name, count in fields.items()
    )


def _parse_ooms(fields: Mapping[str, Any], events: Events) -> dict[str, Any]:
    # Those that the program met, and those after which a library took another algorithm.
    first = field_checks.position(fields.get("first_position"), "first_position")
    after = set((np.flatnonzero(events.kind == EventKind.DONE_WITHOUT) + first + 1).tolist())
    ooms = field_checks.parse_all(OutOfMemory, fields, "ooms")
    return {
        "ooms": tuple(oom for oom in ooms if oom.position not in after),
        "done_without": tuple(oom for oom in ooms if oom.position in after),
    }
