"""Types of elements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ullage.ground.errors import SpecError


@dataclass(frozen=True, slots=True)
class DType:
    """The type of an element. Compare by identity."""

    name: str
    itemsize: int
    is_floating: bool = True


FLOAT32: Final = DType("float32", 4)
BFLOAT16: Final = DType("bfloat16", 2)
FLOAT16: Final = DType("float16", 2)
INT64: Final = DType("int64", 8, is_floating=False)
INT32: Final = DType("int32", 4, is_floating=False)
BOOL: Final = DType("bool", 1, is_floating=False)
UINT8: Final = DType("uint8", 1, is_floating=False)


def find_dtype(name: str) -> DType:
    """The dtype of a name such as "bfloat16"."""
    for dtype in (FLOAT32, BFLOAT16, FLOAT16):
        if dtype.name == name:
            return dtype
    raise SpecError(f"dtype: found {name!r}, expected float32, bfloat16 or float16")
