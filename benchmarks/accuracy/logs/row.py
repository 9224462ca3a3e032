"""A row of rows.csv, what a run of its program gave, and how they compare."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
MIB = 2**20


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of a public log; peaks in whole MiB, rounded down, of rank 0, one a run.

    Attributes:
        torch_of_log: as the log or the page beside it says.
        torch_here: the version that the program runs with here.
        environment: the variables that the log names.
        folder: of the program, in the repository.
        stand_in: a module that is not to be had, for which stand_ins/ has one; empty for none.
    """

    name: str
    torch_of_log: str
    torch_here: str
    gpu: str
    environment: dict[str, str]
    allocated_mib: tuple[int, ...]
    reserved_mib: tuple[int, ...]
    folder: str
    stand_in: str
    note: str


@dataclass(frozen=True, slots=True)
class Result:
    """What a run on the phantom gave.

    Attributes:
        allocated_mib, reserved_mib: as the program printed them; None: the latter was not kept.
        warm_mib: what is allocated with a warm cache of Inductor's.
        low_bytes, high_bytes: the interval of the reserved peak.
        assumptions: of the allocator's basis that have an interval.
    """

    allocated_mib: int
    reserved_mib: int | None
    warm_mib: int
    low_bytes: int
    high_bytes: int
    assumptions: tuple[str, ...]
    torch: str
    wall_s: float

    @property
    def width(self) -> float:
        """The width of the interval, as a share of its upper end."""
        return (self.high_bytes - self.low_bytes) / self.high_bytes

    def gap(self, allocated_mib: int) -> int:
        """How far a figure of a log is above (or below) what is allocated, warm and cold."""
        low, high = sorted((self.warm_mib, self.allocated_mib))
        return max(0, allocated_mib - high) - max(0, low - allocated_mib)

    def holds(self, reserved_mib: int) -> bool:
        """Whether a figure of a log, rounded down, lies in the interval."""
        return self.low_bytes // MIB <= reserved_mib <= self.high_bytes // MIB


def read_rows(path: Path = HERE / "rows.csv") -> Iterator[Row]:
    """The rows of the file."""
    with path.open(encoding="utf-8", newline="") as file:
        for cells in csv.DictReader(file):
            yield Row(
                name=cells["name"],
                torch_of_log=cells["torch_of_log"],
                torch_here=cells["torch_here"],
                gpu=cells["gpu"],
                environment=json.loads(cells["environment"]),
                allocated_mib=tuple(map(int, cells["allocated_mib"].split())),
                reserved_mib=tuple(map(int, cells["reserved_mib"].split())),
                folder=cells["folder"],
                stand_in=cells["stand_in"],
                note=cells["note"],
            )


def read_results(path: Path = RESULTS) -> dict[str, Result]:
    """What the last runs gave, by the names of the rows."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    return {name: read_stored(fields) for name, fields in stored.items()}


def read_stored(fields: dict[str, Any]) -> Result:
    """A result as it was written to a file."""
    return Result(**{**fields, "assumptions": tuple(fields["assumptions"])})
