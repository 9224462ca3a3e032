"""Reads what a watched process wrote: `<pid>.record`, or the key "ullage" of a snapshot.

Both are pickles of plain values. A pickle may name any function to call while it is read; this
reader refuses every name, so that a file from somebody else can do no harm, and checks each field,
so that nothing beyond this module sees a dict.

    record = read_record(Path("4711.record"))
"""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np

from ullage.ground.errors import SnapshotError
from ullage.ground.printable import hide_secrets
from ullage.log import field_checks
from ullage.log.batch_waits import parse_batch_waits
from ullage.log.field_checks import Index, Indices
from ullage.log.measured import parse_measured
from ullage.log.model import (
    Claims,
    Copies,
    DeviceTotals,
    EventKind,
    Events,
    Mark,
    MarkKind,
    PinnedLevels,
    Record,
    UInt32Array,
)
from ullage.log.record_schema import ROWS, SCHEMA
from ullage.log.work_log import parse_work_log
from ullage.log.workspaces import Scratch, Workspaces

# The marks of a record, and where `--steps` ended the program, read from plain values.


def parse_mark(value: object) -> Mark:
    """A mark from its row: position, kind, and what else is known of it.

    Raises:
        SnapshotError: it is damaged.
    """
    position, kind_text, payload = field_checks.row(value, len(ROWS["marks"]), "marks")
    kind = field_checks.read(MarkKind, kind_text, "marks")
    place = field_checks.position(position, "marks")
    if kind is MarkKind.FORWARD_BEGIN and isinstance(payload, dict):
        mode, module = payload.get("training"), payload.get("module")
        return Mark(
            place,
            kind,
            grad=bool(payload.get("grad", True)),
            is_training_mode=None if mode is None else bool(mode),
            module=None if module is None else field_checks.whole(module, "marks"),
        )
    if kind is MarkKind.FORWARD_END and isinstance(payload, dict):
        tokens = payload.get("tokens")
        return Mark(
            place,
            kind,
            inputs=field_checks.read(
                tuple[tuple[Index, ...], ...], payload.get("inputs", ()), "inputs"
            ),
            num_tokens=None if tokens is None else field_checks.whole(tokens, "marks"),
            has_failed=payload.get("failed") is True,
            has_autocast=payload.get("autocast") is True,
        )
    index = payload if kind is MarkKind.STEP and isinstance(payload, int) else None
    return Mark(place, kind, index=index)


T = TypeVar("T")

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
    record = field_checks.read(
        Record,
        fields,
        "the record",
        argv=hide_secrets(field_checks.read(tuple[str, ...], fields.get("argv", ()), "argv")),
        devices=field_checks.read(tuple[DeviceTotals, ...], fields.get("devices", ()), "devices"),
        events=events,
        marks=tuple(map(parse_mark, _rows(fields, "marks"))),
        claims=_parse_columns(Claims, fields, "claims"),
        workspaces=_parse_columns(Workspaces, fields, "workspaces"),
        last_use=_parse_last_use(fields, len(events)),
        copies=_parse_copies(fields) if "copies" in fields else None,
        pinned=_parse_columns(PinnedLevels, fields, "pinned") if "pinned" in fields else None,
        pinned_low=(
            _parse_columns(PinnedLevels, fields, "pinned_low") if "pinned_low" in fields else None
        ),
        scratch=_parse_columns(Scratch, fields, "scratch") if "scratch" in fields else None,
        work_log=parse_work_log(fields),
        measured=parse_measured(fields),
        batch_waits=parse_batch_waits(fields),
    )
    # Out of memory: what the program met, and that after which a library took another algorithm.
    done = np.flatnonzero(events.kind == EventKind.DONE_WITHOUT) + record.first_position + 1
    after = set(done.tolist())
    return dataclasses.replace(
        record,
        ooms=tuple(oom for oom in record.ooms if oom.position not in after),
        done_without=tuple(oom for oom in record.ooms if oom.position in after),
    )


def _rows(fields: Mapping[str, Any], name: str) -> Sequence[Any]:
    return field_checks.read(tuple[Any, ...], fields.get(name, ()), name)


def _parse_columns(kind: type[T], fields: Mapping[str, Any], name: str) -> T:
    width = len(ROWS["pinned" if kind is PinnedLevels else name])
    return field_checks.read(kind, field_checks.columns(_rows(fields, name), width, name), name)


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
        precision=column("precision", "u1") if "precision" in fields else None,
    )
    lengths = {
        len(getattr(events, column.name))
        for column in dataclasses.fields(events)
        if getattr(events, column.name) is not None
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


def _parse_copies(fields: Mapping[str, Any]) -> Copies:
    columns = field_checks.columns(_rows(fields, "copies"), len(ROWS["copies"]), "copies")
    position, device, address, size, stream, flags = field_checks.read(
        tuple[Indices, ...], columns, "copies"
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
