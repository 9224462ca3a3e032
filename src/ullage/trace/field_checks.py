"""Checks of what a file holds as plain values: each gives the value, or an error that names what
was found and what was expected.

    field_checks.number({"pid": 4711}, "pid")
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING
from dataclasses import fields as fields_of
from typing import Any, TypeAlias, TypeVar

import numpy as np

from ullage.errors import SnapshotError
from ullage.parsing import show_value
from ullage.printable import printable, printable_lines

T = TypeVar("T")
# How fields of records are annotated that are no plain sizes: the types of the checks below.
Index: TypeAlias = int  # -1: of nothing
Lines: TypeAlias = str
Position: TypeAlias = int
Positions: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
# Beyond any device and any count; sums of such sizes still fit in 64 bits.
MAX_SIZE = 2**60
# More would let positions overflow 64 bits where they are combined with sizes.
MAX_POSITION = 2**40


def typed(value: object, kind: type[T], name: str) -> T:
    """A value of a kind."""
    if not isinstance(value, kind):
        raise SnapshotError(f"{name} is {type(value).__name__}, not {kind.__name__}")
    return value


def text(fields: Mapping[str, Any], name: str) -> str:
    """A field that is a text of one line, fit to be shown."""
    return printable(typed(fields.get(name), str, name))


def optional_text(fields: Mapping[str, Any], name: str) -> str | None:
    """A field that is such a text, or None."""
    return None if fields.get(name) is None else text(fields, name)


def number(fields: Mapping[str, Any], name: str, fallback: int | None = None) -> int:
    """A field that is a number of 64 bits; `fallback` where it is missing."""
    value = fields.get(name)
    if value is None and fallback is not None:
        return fallback
    return whole(value, name)


def whole(value: object, name: str) -> int:
    """A value that is a number of 64 bits."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise SnapshotError(f"{name} is {type(value).__name__}, not int")
    if abs(value) >= 1 << 63:
        raise SnapshotError(f"{name} is {show_value(value)}, more than 64 bits hold")
    return value


def position(value: object, name: str) -> int:
    """A value that is a number of allocator events."""
    number_of = whole(value, name)
    if not 0 <= number_of <= MAX_POSITION:
        raise SnapshotError(f"{name} has the position {number_of}; expected 0 to {MAX_POSITION}")
    return number_of


def size(fields: Mapping[str, Any], name: str, fallback: int | None = None) -> int:
    """A field that is a number of bytes or a count; `fallback` where it is missing."""
    value = number(fields, name, fallback)
    if not 0 <= value <= MAX_SIZE:
        raise SnapshotError(f"{name} is {value}; expected a number from 0 to {MAX_SIZE}")
    return value


def seconds(fields: Mapping[str, Any], name: str) -> float:
    """A field that is a time."""
    value = fields.get(name)
    time_s = float(whole(value, name)) if isinstance(value, int) else typed(value, float, name)
    if not math.isfinite(time_s):
        raise SnapshotError(f"{name} is {time_s}; expected seconds")
    return time_s


def choice(choices: type[T], value: object, name: str) -> T:
    """A member of an enum, by its value."""
    try:
        return choices(value)  # type: ignore[call-arg]
    except ValueError:
        raise SnapshotError(
            f"{name} holds {value!r}, which this ullage does not know; is it newer?"
        ) from None


def rows(fields: Mapping[str, Any], name: str) -> Sequence[object]:
    """A field that is a list; empty where it is missing."""
    value = fields.get(name, ())
    if not isinstance(value, list | tuple):
        raise SnapshotError(f"{name} is {type(value).__name__}, not a list")
    return value


def row(value: object, width: int, name: str) -> Sequence[Any]:
    """An entry of a list, with `width` values."""
    if not isinstance(value, list | tuple) or len(value) != width:
        raise SnapshotError(f"{name} holds an entry that is not {width} values: {value!r:.80}")
    return value


def _or_none(check: Callable[[Any, str], object]) -> Callable[[Any, str], object]:
    return lambda value, name: None if value is None else check(value, name)


_CHECKS: Mapping[str, Callable[[Any, str], object]] = {
    "int": lambda value, name: size({name: value}, name),
    "Index": lambda value, name: whole(value, name),
    "Position": lambda value, name: position(value, name),
    "float": lambda value, name: seconds({name: value}, name),
    "bool": lambda value, name: typed(value, bool, name),
    "str": lambda value, name: shown(value, name),
    "Lines": lambda value, name: printable_lines(typed(value, str, name)),
    "tuple[str, ...]": lambda value, name: parse_texts({name: value}, name),
}
_CHECKS = {**_CHECKS, **{f"{kind} | None": _or_none(check) for kind, check in _CHECKS.items()}}
_COLUMNS: Mapping[str, Callable[[Sequence[Any], str], object]] = {
    "Int64Array": lambda values, name: int_column(values, name),
    "Positions": lambda values, name: position_column(values, name),
    "tuple[str, ...]": lambda values, name: tuple(shown(value, name) for value in values),
}


def parse_record(kind: Callable[..., T], value: object, name: str, /, **given: object) -> T:
    """A dict as a dataclass of sizes, counts and texts, of which those with a default may be
    missing; "bytes" is `size_bytes`. `given` are fields that were read in another way.
    """
    entries = typed(value, dict, name)
    for field in fields_of(kind):  # type: ignore[arg-type]
        key = "bytes" if field.name == "size_bytes" else field.name
        check = None if field.name in given else _CHECKS.get(str(field.type))
        if check and (entries.get(key) is not None or field.default is MISSING):
            given[field.name] = check(entries.get(key), key)
    return kind(**given)


def parse_row(kind: Callable[..., T], entry: object, name: str, *given: object) -> T:
    """An entry of a list as a tuple or dataclass; `given` are its last fields, which are not in the
    entry.
    """
    # Those of a NamedTuple are wrapped.
    kinds = [str(getattr(of, "__forward_arg__", of)) for of in kind.__annotations__.values()]
    kinds = kinds[: -len(given) or None]
    values = row(entry, len(kinds), name)
    checked = (_CHECKS[of](value, name) for of, value in zip(kinds, values, strict=True))
    return kind(*checked, *given)


def parse_columns(kind: Callable[..., T], entries: Sequence[object], name: str) -> T:
    """The entries of a list as a dataclass of columns."""
    kinds = kind.__annotations__.values()
    values = columns(entries, len(kinds), name)
    return kind(*(_COLUMNS[str(of)](each, name) for of, each in zip(kinds, values, strict=True)))


def parse_rows(fields: Mapping[str, Any], name: str, parse: Callable[[object], T]) -> tuple[T, ...]:
    """The entries of a list, each parsed."""
    return tuple(parse(entry) for entry in rows(fields, name))


def parse_all(kind: Callable[..., T], fields: Mapping[str, Any], name: str) -> tuple[T, ...]:
    """The entries of a list, each a dict or a row, as dataclasses or tuples."""
    return tuple(
        parse_record(kind, entry, name) if isinstance(entry, dict) else parse_row(kind, entry, name)
        for entry in rows(fields, name)
    )


def parse_texts(fields: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """A field that is a list of texts."""
    return parse_rows(fields, name, lambda value: shown(value, name))


def shown(value: object, name: str) -> str:
    """A value that is a text of one line, fit to be shown."""
    return printable(typed(value, str, name))


def columns(entries: Sequence[object], width: int, name: str) -> Sequence[Sequence[Any]]:
    """A list of rows turned into columns."""
    checked = [row(entry, width, name) for entry in entries]
    return list(zip(*checked, strict=True)) if checked else [()] * width


def int_column(values: Sequence[Any], name: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """A column of whole numbers."""
    return np.array([whole(value, name) for value in values], dtype=np.int64)


def position_column(values: Sequence[Any], name: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """A column of positions."""
    return np.array([position(value, name) for value in values], dtype=np.int64)
