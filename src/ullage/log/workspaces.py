"""Scratch memory of libraries: which blocks it was, and what a model gave as its size."""

from __future__ import annotations

from dataclasses import dataclass

from ullage.log.field_checks import Indices, Positions


@dataclass(frozen=True, slots=True)
class Workspaces:
    """Blocks that a library was handed as scratch memory, as columns."""

    position: Positions
    device: Indices
    address: Indices
    size_bytes: Indices
    library: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.position)


@dataclass(frozen=True, slots=True)
class Scratch:
    """Scratch memory of one operation each whose size a model gave, as columns; `address` is 0
    where the answer was that none is needed.
    """

    position: Positions
    device: Indices
    address: Indices
    low_bytes: Indices
    answered_bytes: Indices
    high_bytes: Indices
    what: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.position)
