"""The list of the programs of the wild, read from programs.toml."""

from __future__ import annotations

import enum
import tomllib
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
NUM_PROGRAMS = 45


class Origin(enum.Enum):
    """Where a program comes from."""

    COMMAND = "command"
    PACKAGE = "package"
    AFTER = "after"


@dataclass(frozen=True, slots=True)
class WildProgram:
    """One program: see programs.toml for the fields."""

    name: str
    model: str
    origin: Origin
    packages: tuple[str, ...]
    run: tuple[str, ...]
    prepare: str | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """What follows `--`: a file of this directory by its path."""
        file = PROGRAMS / self.run[0]
        return (str(file), *self.run[1:]) if file.suffix == ".py" else self.run


def read_programs() -> list[WildProgram]:
    """All programs, in the order of the table."""
    rows = tomllib.loads((HERE / "programs.toml").read_text(encoding="utf-8"))["program"]
    return [
        WildProgram(
            name=row["name"],
            model=row["model"],
            origin=Origin(row["origin"]),
            packages=tuple(row["packages"]),
            run=tuple(row["run"]),
            prepare=row.get("prepare"),
        )
        for row in rows
    ]
