"""Reads what a file holds as plain values by the types of records: an error names what was found
and what was expected.

    field_checks.size({"pid": 4711}.get("pid"), "pid")
    field_checks.read(Holder, [17, 0, 4096, "outputs[3]"], "holders")
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import numpy as np

from ullage.ground.errors import SnapshotError
from ullage.ground.parsing import show_value
from ullage.ground.printable import printable, printable_lines
from ullage.ground.protocol.plain import From, Misfit, Reader

T = TypeVar("T")
# Beyond any device and any count; sums of such sizes still fit in 64 bits.
MAX_SIZE = 2**60
# More would let positions overflow 64 bits where they are combined with sizes.
MAX_POSITION = 2**40


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise Misfit(f"is {show_value(value)}; expected a whole number")
    if abs(value) >= 1 << 63:
        raise Misfit(f"is {show_value(value)}, more than 64 bits hold")
    return value


def _position(value: object) -> int:
    if not 0 <= _whole(value) <= MAX_POSITION:
        raise Misfit(f"is the position {value}; expected 0 to {MAX_POSITION}")
    return _whole(value)


def _size(value: int) -> int:
    if not 0 <= value <= MAX_SIZE:
        raise Misfit(f"is {show_value(value)}; expected a number from 0 to {MAX_SIZE}")
    return value


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise Misfit(f"is {value}; expected seconds")
    return value


def _lines(value: object) -> str:
    if not isinstance(value, str):
        raise Misfit(f"is {show_value(value)}; expected a string")
    return printable_lines(value)


def _whole_column(values: Sequence[object]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array([_whole(value) for value in values], dtype=np.int64)


def _position_column(values: Sequence[object]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array([_position(value) for value in values], dtype=np.int64)


# Types of fields of records; an int is a number of bytes or a count, a str has one line.
Index: TypeAlias = Annotated[int, From(object), _whole]  # -1: of nothing
Position: TypeAlias = Annotated[int, From(object), _position]
Lines: TypeAlias = Annotated[str, From(object), _lines]
Column: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Indices: TypeAlias = Annotated[Column, From(object), _whole_column]
Positions: TypeAlias = Annotated[Column, From(object), _position_column]
_RECORD: Final = Reader(
    {
        str: "a string", int: "a whole number", float: "a number", bool: "true or false",
        list: "a list", dict: "a table",
    },
    {int: _size, float: _finite, str: printable},
    is_none_missing=True,
    has_rows=True,
)  # fmt: skip


def read(kind: type[T], value: object, name: str, /, **given: object) -> T:
    """A value as a record, or another of the types above; `given` are fields that were read in
    another way.

    Raises:
        SnapshotError: it is something else.
    """
    return _named(lambda: _RECORD.read(kind, value, **given), name)


def whole(value: object, name: str) -> int:
    """A value that is a number of 64 bits."""
    return _named(lambda: _whole(value), name)


def size(value: object, name: str) -> int:
    """A value that is a number of bytes or a count."""
    return _named(lambda: _size(_whole(value)), name)


def position(value: object, name: str) -> int:
    """A value that is a number of allocator events."""
    return _named(lambda: _position(value), name)


def _named(check: Callable[[], T], name: str) -> T:
    try:
        return check()
    except Misfit as misfit:
        raise SnapshotError(misfit.say(name)) from None


def typed(value: object, kind: type[T], name: str) -> T:
    """A value of a kind."""
    if not isinstance(value, kind):
        raise SnapshotError(f"{name} is {type(value).__name__}, not {kind.__name__}")
    return value


def row(value: object, width: int, name: str) -> Sequence[Any]:
    """An entry of a list, with `width` values."""
    if not isinstance(value, list | tuple) or len(value) != width:
        raise SnapshotError(f"{name} holds an entry that is not {width} values: {value!r:.80}")
    return value


def columns(entries: Sequence[object], width: int, name: str) -> Sequence[Sequence[Any]]:
    """A list of rows turned into columns."""
    checked = [row(entry, width, name) for entry in entries]
    return list(zip(*checked, strict=True)) if checked else [()] * width
