"""The log of work in a record: what the streams of a device were given, in the host's order.

The phantom writes it (players/phantom/csrc/machine/work_log.c); `ullage.clock` makes times of it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ullage.ground.errors import SnapshotError
from ullage.log import field_checks

ENTRY: Final = np.dtype(
    [
        ("other", "<u8"), ("work", "<u4"), ("scope", "<i4"), ("position", "<u4"), ("lane", "<u2"),
        ("kind", "u1"), ("device", "u1"),
    ]
)  # fmt: skip
"""A row of the log: `struct entry` of work_log.c."""


class EntryKind(enum.IntEnum):
    """The kind of a row of the log.

    GIVEN: a stream (`lane`) was given the piece of work `work`, for the module `scope`. RECORDED:
    an event was recorded on the stream. WAITED: the stream waits for the record with the serial
    number `other`. HOST_WAITED_...: the host waits for a stream, a record, or all of the device.
    MARKED: the program passed a moment (`work`: which, `other`: its number). CAPTURED: as GIVEN,
    but collected by the capture of the graph `other`. GRAPH: the stream was given that graph.
    """

    GIVEN = 0
    RECORDED = 1
    WAITED = 2
    HOST_WAITED_LANE = 3
    HOST_WAITED_EVENT = 4
    HOST_WAITED_DEVICE = 5
    MARKED = 6
    CAPTURED = 7
    GRAPH = 8


class WorkKind(enum.IntEnum):
    """The kind of a piece of work; work_log.h says what its numbers are."""

    KERNEL = 0
    PRODUCT = 1
    CONVOLUTION = 2
    ATTENTION = 3
    COLLECTIVE = 4
    COPY = 5
    FILL = 6
    LIBRARY = 7


class WorkRow(NamedTuple):
    """A piece of work as the phantom wrote it down.

    Attributes:
        kind: what it is.
        precision: a cudaDataType; 100: TF32; -1: none.
        name: of the function; empty: not known.
        numbers: the shape, by the kind.
        arguments: the first bytes of a kernel's arguments, where the shape is in them.
    """

    kind: WorkKind
    precision: int
    name: str
    numbers: tuple[int, ...]
    arguments: bytes


@dataclass(frozen=True, slots=True)
class WorkLog:
    """The log of the last steps.

    Attributes:
        first: how many rows were dropped before; the first row has the serial number first + 1.
        entries: the rows, of the type ENTRY.
        captured: what captures collected, since the program's start.
        works: the pieces of work that rows refer to.
    """

    first: int
    entries: npt.NDArray[Any]
    captured: npt.NDArray[Any]
    works: tuple[WorkRow, ...]


def parse_work_log(fields: Mapping[str, Any]) -> WorkLog | None:
    """The log in a record; None where the run wrote none.

    Raises:
        SnapshotError: it is damaged.
    """
    if "work_log" not in fields:
        return None
    log = field_checks.typed(fields["work_log"], dict, "work_log")
    works = tuple(
        map(parse_work, field_checks.read(tuple[Any, ...], log.get("works", ()), "works"))
    )
    return WorkLog(
        first=field_checks.size(log.get("first", 0), "first"),
        entries=parse_entries(_data(log, "entries"), "entries", len(works)),
        captured=parse_entries(_data(log, "captured"), "captured", len(works)),
        works=works,
    )


def parse_entries(data: bytes, name: str, num_works: int) -> npt.NDArray[Any]:
    """The rows of a log.

    Raises:
        SnapshotError: they are damaged.
    """
    if len(data) % ENTRY.itemsize:
        raise SnapshotError(
            f"work_log.{name} has {len(data)} bytes; expected a multiple of {ENTRY.itemsize}"
        )
    rows = np.frombuffer(data, dtype=ENTRY)
    given = np.isin(rows["kind"], (EntryKind.GIVEN, EntryKind.CAPTURED))
    if len(rows) and (
        rows["kind"].max() > max(EntryKind) or (rows["work"][given] >= num_works).any()
    ):
        raise SnapshotError(f"work_log.{name} has a row that refers to nothing")
    return rows


def _data(log: Mapping[str, Any], name: str) -> bytes:
    return field_checks.typed(log.get(name), bytes, f"work_log.{name}")


def parse_work(row: object) -> WorkRow:
    """A piece of work from its row.

    Raises:
        SnapshotError: it is damaged.
    """
    kind, precision, name, numbers, arguments = field_checks.row(row, 5, "work_log.works")
    values = field_checks.typed(numbers, list, "work_log.works")
    if kind not in list(WorkKind):
        raise SnapshotError(f"work_log.works has the kind {kind!r}; expected one of 0 to 7")
    return WorkRow(
        WorkKind(kind),
        field_checks.typed(precision, int, "work_log.works"),
        field_checks.typed(name, str, "work_log.works"),
        tuple(field_checks.typed(value, int, "work_log.works") for value in values),
        field_checks.typed(arguments, bytes, "work_log.works"),
    )
