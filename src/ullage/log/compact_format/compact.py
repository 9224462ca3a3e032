"""Our own compact file of a snapshot, `.ullage`, which reopens at once.

    write_compact(read_snapshot(Path("snapshot.pickle")), Path("snapshot.ullage"))
    snapshot = read_compact(Path("snapshot.ullage"))

All columns of its tables are in a `container`; what is not a column (names, settings, the record)
is beside them as a pickle of plain values, which the native reader reads: no class is ever loaded.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ullage.ground.errors import SnapshotError
from ullage.ground.printable import printable, printable_name, printable_values
from ullage.log.compact_format.container import MAGIC, Columns, damaged, read_columns, write_columns
from ullage.log.plain import LIST, TEXT, PlainFile, parse_plain
from ullage.log.snapshot import (
    Annotation,
    BlockTable,
    EventTable,
    Frames,
    SegmentTable,
    Snapshot,
    Stacks,
    as_posix,
)

_MAX_DEVICES = 1024
# Beyond this, sums of addresses and sizes would not fit into 64 bits.
_MAX_NUMBER = 2**62
_DTYPES = {"Int64Array": "<i8", "UInt32Array": "<u4", "UInt8Array": "u1", "int": "<i8"}
_TABLES: dict[str, type[Any]] = {
    "events": EventTable,
    "host_events": EventTable,
    "segments": SegmentTable,
    "blocks": BlockTable,
    "host_segments": SegmentTable,
    "host_blocks": BlockTable,
    "stacks": Stacks,
    "frames": Frames,
    "annotations": Annotation,
}

T = TypeVar("T")
U = TypeVar("U")
Table = TypeVar("Table", EventTable, SegmentTable, BlockTable)


def write_compact(snapshot: Snapshot, path: Path) -> None:
    """Writes a snapshot, whole or not at all; what is there is replaced.

    Raises:
        SnapshotError: it cannot be written there.
    """
    target = path.resolve()
    aside = target.with_name(f".{target.name[:100]}-{os.getpid()}.part")
    try:
        if target.exists() and not target.is_file():
            raise SnapshotError(f"cannot write {str(path)!r}: it is not a regular file")
        try:
            with aside.open("xb") as file:
                rest = pickle.dumps(_values(snapshot), protocol=4)
                write_columns(file, dict(_columns(snapshot)), rest)
            aside.replace(target)
        finally:
            aside.unlink(missing_ok=True)
    except OSError as error:
        raise SnapshotError(f"cannot write {str(path)!r}: {error.strerror or error}") from None


def read_compact(path: Path) -> Snapshot:
    """Reads what `write_compact` wrote; it is equal field by field.

    Raises:
        SnapshotError: it is missing, not such a file, of a newer ullage, damaged, or would unpack
            to more memory than a snapshot of its size does.
    """
    try:
        with path.open("rb") as file:
            columns, rest = read_columns(file, _dtype_of)
        with parse_plain(rest) as values:
            return _check(_Reading(columns, values).snapshot())
    except SnapshotError as error:
        raise SnapshotError(f"cannot read {str(path)!r}: {error}") from None
    except OSError as error:
        raise SnapshotError(f"cannot read {str(path)!r}: {error.strerror or error}") from None


def is_compact(path: Path) -> bool:
    """True if a file says that it is compact; False of one that cannot be read, and of a pipe, of
    which nothing is taken.
    """
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.peek(len(MAGIC)).startswith(MAGIC)
    except OSError:
        return False


def _columns(snapshot: Snapshot) -> Iterator[tuple[str, NDArray[Any]]]:
    tables: dict[str, EventTable | SegmentTable | BlockTable] = {
        "segments": snapshot.segments,
        "blocks": snapshot.blocks,
        "host_segments": snapshot.host_segments,
        "host_blocks": snapshot.host_blocks,
    }
    tables |= {f"events.{number}": table for number, table in enumerate(snapshot.events)}
    tables |= {f"host_events.{number}": table for number, table in enumerate(snapshot.host_events)}
    for prefix, table in tables.items():
        for name in type(table).__slots__:
            yield f"{prefix}.{name}", getattr(table, name)
    yield "frames.line", snapshot.stacks.frames.line
    yield "stacks.start", snapshot.stacks.start
    yield "stacks.frame", snapshot.stacks.frame
    for name in ("time_us", "device"):
        numbers = [getattr(annotation, name) for annotation in snapshot.annotations]
        yield f"annotations.{name}", np.array(numbers, dtype=np.int64)


def _values(snapshot: Snapshot) -> dict[str, Any]:
    frames, annotations = snapshot.stacks.frames, snapshot.annotations
    return {
        "files": list(frames.file),
        "functions": list(frames.function),
        "texts": list(snapshot.texts),
        "pools": list(snapshot.pools),
        "settings": dict(snapshot.settings),
        "annotation_names": [annotation.name for annotation in annotations],
        "annotation_stages": [annotation.stage for annotation in annotations],
        "has_record": snapshot.record is not None,
        "record": dict(snapshot.record or {}),
        "num_devices": [len(snapshot.events), len(snapshot.host_events)],
        "unknown": list(snapshot.unknown.items()),
    }


def _dtype_of(name: str) -> str | None:
    """The type of a column of a snapshot; None of one that this version does not know."""
    table, _, column = name.rpartition(".")
    kind = _TABLES.get(table.partition(".")[0])
    known = {field.name: str(field.type) for field in fields(kind)} if kind else {}
    return _DTYPES[known[column]] if known.get(column) in _DTYPES else None


class _Reading:
    """The parts of a snapshot, put together."""

    def __init__(self, columns: Columns, values: PlainFile) -> None:
        self._columns = columns
        self._values = values

    def snapshot(self) -> Snapshot:
        """The whole, its numbers not yet checked."""
        num_devices = self._python("num_devices", list)
        if len(num_devices) != 2 or not all(
            num_device in range(_MAX_DEVICES) for num_device in num_devices
        ):
            raise damaged(f"it has {num_devices!r:.80} devices")
        annotations = (
            self._texts("annotation_names"),
            self._texts("annotation_stages"),
            self._column("annotations.time_us").tolist(),
            self._column("annotations.device").tolist(),
        )
        if len(set(map(len, annotations))) != 1:
            raise damaged("its annotations have columns of several lengths")
        files = tuple(map(as_posix, self._texts("files")))
        frames = Frames(files, self._column("frames.line"), self._texts("functions"))
        return Snapshot(
            events=self._events("events", num_devices[0]),
            segments=self._table(SegmentTable, "segments"),
            blocks=self._table(BlockTable, "blocks"),
            host_events=self._events("host_events", num_devices[1]),
            host_segments=self._table(SegmentTable, "host_segments"),
            host_blocks=self._table(BlockTable, "host_blocks"),
            stacks=Stacks(frames, self._column("stacks.start"), self._column("stacks.frame")),
            pools=tuple(self._pairs("pools", int, int)),
            texts=self._texts("texts"),
            settings=printable_values(self._python("settings", dict)),
            annotations=tuple(map(Annotation, *annotations)),
            record=self._python("record", dict) if self._python("has_record", bool) else None,
            unknown={printable(key): n for key, n in self._pairs("unknown", str, int)},
        )

    def _column(self, name: str) -> NDArray[Any]:
        if name not in self._columns:
            raise damaged(f"it has no column {name}")
        return self._columns[name]

    def _table(self, kind: type[Table], prefix: str) -> Table:
        return kind(*(self._column(f"{prefix}.{name}") for name in kind.__slots__))

    def _events(self, prefix: str, number: int) -> tuple[EventTable, ...]:
        return tuple(self._table(EventTable, f"{prefix}.{index}") for index in range(number))

    def _python(self, key: str, kind: type[T]) -> T:
        values = self._values
        value = values.python(values.get(values.root, key))
        if not isinstance(value, kind):
            raise damaged(f"its {key} is {type(value).__name__}, not {kind.__name__}")
        return value

    def _texts(self, key: str) -> tuple[str, ...]:
        value = self._values.get(self._values.root, key)
        texts = self._values.items(value).tolist()
        if value & 7 != LIST or any(text & 7 != TEXT for text in texts):
            raise damaged(f"its {key} are not texts")
        return tuple(printable_name(self._values.text(text)) for text in texts)

    def _pairs(self, key: str, first: type[T], second: type[U]) -> Iterator[tuple[T, U]]:
        for row in self._python(key, list):
            if not isinstance(row, tuple) or [type(cell) for cell in row] != [first, second]:
                raise damaged(f"its {key} holds {row!r:.80}")
            yield row


def _check(snapshot: Snapshot) -> Snapshot:
    """Every number that refers to an entry of another table refers to one that is there."""
    stacks = snapshot.stacks
    _check_starts("stacks", stacks.start, len(stacks.frame))
    if not len(stacks) or not snapshot.pools or not snapshot.texts:
        raise damaged("it has no stack, pool or text 0")
    if not len(stacks.frames.file) == len(stacks.frames.line) == len(stacks.frames.function):
        raise damaged("its frames have columns of several lengths")
    _check_numbers("a frame", stacks.frame, len(stacks.frames.file))
    counts = {
        "stack": len(stacks),
        "forward_stack": len(stacks),
        "pool": len(snapshot.pools),
        "context": len(snapshot.texts),
    }
    for table in (*snapshot.events, *snapshot.host_events):
        _check_table(table, counts, len(table))
    for segments, blocks in (
        (snapshot.segments, snapshot.blocks),
        (snapshot.host_segments, snapshot.host_blocks),
    ):
        _check_table(segments, counts | {"first_block": len(blocks) + 1}, len(segments))
        _check_starts("segments", segments.first_block, len(blocks))
        _check_table(blocks, counts | {"segment": len(segments)}, len(blocks))
    return snapshot


def _check_table(
    table: EventTable | SegmentTable | BlockTable, counts: Mapping[str, int], num_rows: int
) -> None:
    for name in type(table).__slots__:
        column = getattr(table, name)
        if len(column) != num_rows + (name == "first_block"):
            raise damaged(f"a table has {num_rows} rows, and {len(column)} in its column {name}")
        if name in counts:
            _check_numbers(name, column, counts[name])
        elif len(column) and not -_MAX_NUMBER < column.min() <= column.max() < _MAX_NUMBER:
            raise damaged(f"a number in the column {name} is beyond any address")


def _check_numbers(what: str, column: NDArray[Any], count: int) -> None:
    if len(column) and not 0 <= column.min() <= column.max() < count:
        raise damaged(f"it names {what} {column.max()}, and has {count}")


def _check_starts(what: str, starts: NDArray[np.int64], end: int) -> None:
    if not len(starts) or starts[0] != 0 or starts[-1] != end or (np.diff(starts) < 0).any():
        raise damaged(f"its {what} do not follow each other")
