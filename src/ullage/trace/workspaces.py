"""Scratch memory of libraries: which blocks it was, and what a model gave as its size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ullage.trace import field_checks
from ullage.trace.record_schema import ROWS

Int64Array: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Workspaces:
    """Blocks that a library was handed as scratch memory, as columns."""

    position: Int64Array
    device: Int64Array
    address: Int64Array
    size_bytes: Int64Array
    library: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.position)


@dataclass(frozen=True, slots=True)
class Scratch:
    """Scratch memory of one operation each whose size a model gave, as columns; `address` is 0
    where the answer was that none is needed.
    """

    what: tuple[str, ...]
    position: Int64Array
    device: Int64Array
    address: Int64Array
    low_bytes: Int64Array
    answered_bytes: Int64Array
    high_bytes: Int64Array

    def __len__(self) -> int:
        return len(self.position)


def parse_workspaces(rows: Sequence[object]) -> Workspaces:
    """The workspaces of a record; raises SnapshotError."""
    columns = field_checks.columns(rows, len(ROWS["workspaces"]), "workspaces")
    return Workspaces(
        position=field_checks.position_column(columns[0], "workspaces"),
        device=field_checks.int_column(columns[1], "workspaces"),
        address=field_checks.int_column(columns[2], "workspaces"),
        size_bytes=field_checks.int_column(columns[3], "workspaces"),
        library=tuple(field_checks.shown(text, "workspaces") for text in columns[4]),
    )


def parse_scratch(rows: Sequence[object]) -> Scratch:
    """The scratch memory of a record; raises SnapshotError."""
    *sizes, what = field_checks.columns(rows, len(ROWS["scratch"]), "scratch")
    numbers = (field_checks.int_column(column, "scratch") for column in sizes)
    return Scratch(tuple(field_checks.shown(text, "scratch") for text in what), *numbers)
