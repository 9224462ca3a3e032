"""Scratch memory of libraries: which blocks it was, and what a model gave as its size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ullage.trace import field_checks
from ullage.trace.field_checks import Positions

Int64Array: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Workspaces:
    """Blocks that a library was handed as scratch memory, as columns."""

    position: Positions
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

    position: Positions
    device: Int64Array
    address: Int64Array
    low_bytes: Int64Array
    answered_bytes: Int64Array
    high_bytes: Int64Array
    what: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.position)


def parse_workspaces(rows: Sequence[object]) -> Workspaces:
    """The workspaces of a record; raises SnapshotError."""
    return field_checks.parse_columns(Workspaces, rows, "workspaces")


def parse_scratch(rows: Sequence[object]) -> Scratch:
    """The scratch memory of a record; raises SnapshotError."""
    return field_checks.parse_columns(Scratch, rows, "scratch")
