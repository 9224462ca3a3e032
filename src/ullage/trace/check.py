"""Checks of what a file holds as plain values: each gives the value, or an error that names what
was found and what was expected.

    check.number({"pid": 4711}, "pid")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from ullage.errors import SnapshotError

T = TypeVar("T")


def typed(value: object, kind: type[T], name: str) -> T:
    """A value of a kind."""
    if not isinstance(value, kind):
        raise SnapshotError(f"{name} is {type(value).__name__}, not {kind.__name__}")
    return value


def text(fields: Mapping[str, Any], name: str) -> str:
    """A field that is a text."""
    return typed(fields.get(name), str, name)


def optional_text(fields: Mapping[str, Any], name: str) -> str | None:
    """A field that is a text, or None."""
    return None if fields.get(name) is None else text(fields, name)


def number(fields: Mapping[str, Any], name: str, fallback: int | None = None) -> int:
    """A field that is a number of 64 bits; `fallback` where it is missing."""
    value = fields.get(name)
    if value is None and fallback is not None:
        return fallback
    whole = typed(value, int, name)
    if abs(whole) >= 1 << 63:
        raise SnapshotError(f"{name} is {whole}, more than 64 bits hold")
    return whole


def seconds(fields: Mapping[str, Any], name: str) -> float:
    """A field that is a time."""
    value = fields.get(name)
    return float(value) if isinstance(value, int) else typed(value, float, name)


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
    """An entry of a list, with so many values."""
    if not isinstance(value, list | tuple) or len(value) != width:
        raise SnapshotError(f"{name} holds an entry that is not {width} values: {value!r:.80}")
    return value


def parse_rows(fields: Mapping[str, Any], name: str, parse: Callable[[object], T]) -> tuple[T, ...]:
    """The entries of a list, each parsed."""
    return tuple(parse(entry) for entry in rows(fields, name))


def parse_texts(fields: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """A field that is a list of texts."""
    return parse_rows(fields, name, lambda text: typed(text, str, name))


def columns(entries: Sequence[object], width: int, name: str) -> Sequence[Sequence[Any]]:
    """A list of rows turned into columns."""
    checked = [row(entry, width, name) for entry in entries]
    return list(zip(*checked, strict=True)) if checked else [()] * width


def int_column(values: Sequence[Any], name: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """A column of whole numbers."""
    if not all(isinstance(value, int) for value in values):
        raise SnapshotError(f"{name} holds a number that is not an integer")
    return np.array(values, dtype=np.int64)
