"""Scratch memory of libraries: which blocks it was, and what a model gave as its size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

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
