"""Converts frozen dataclasses to the values of JSON and back, by the types of their fields.

    plain(Note("power_w", "not supported", (0, 1)))
    # {"field": "power_w", "reason": "not supported", "devices": [0, 1]}
    restore(Note, document, "notes[0]")

Back, each value is checked: a wrong type is a ValueError that names the field. Unknown keys are
ignored, so that an older reader reads what a newer writer has added; a field with a default may be
missing.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from ullage.parsing import show_value

T = TypeVar("T")
# The fields of a record, found once: a sample is converted ten times a second.
_FIELDS: dict[type[Any], tuple[tuple[str, Any, bool], ...]] = {}
_ATOMS = frozenset({str, int, float, bool, type(None)})


def plain(value: Any) -> Any:  # noqa: ANN401 - a record, or what one of its fields holds
    """The value in dictionaries, lists, texts, numbers, booleans and None alone."""
    if type(value) in _ATOMS:
        return value
    if isinstance(value, tuple):
        return [plain(member) for member in value]
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, enum.Enum):
        return value.value
    document = {}
    for name, _, _ in _fields(type(value)):
        member = getattr(value, name)
        document[name] = member if type(member) in _ATOMS else plain(member)
    return document


def restore(record: type[T], value: object, where: str) -> T:
    """The record that `plain` has converted.

    Args:
        record: a dataclass.
        value: what the document holds.
        where: how messages call the value.

    Raises:
        ValueError: a field is missing, or its value is not of its type.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} is {show_value(value)}, expected an object")
    arguments = {}
    for name, kind, is_required in _fields(record):
        if name in value:
            arguments[name] = _restore_value(kind, value[name], f"{where}.{name}")
        elif is_required:
            raise ValueError(f"{where} has no {name!r}")
    return record(**arguments)


def _fields(record: type[Any]) -> tuple[tuple[str, Any, bool], ...]:
    """(name, type, whether it must be there) of each field."""
    if record not in _FIELDS:
        kinds = typing.get_type_hints(record)
        _FIELDS[record] = tuple(
            (field.name, kinds[field.name], field.default is dataclasses.MISSING)
            for field in dataclasses.fields(record)
        )
    return _FIELDS[record]


def _restore_value(kind: Any, value: object, where: str) -> object:  # noqa: ANN401 - a type
    origin, members = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        (kind,) = (member for member in members if member is not type(None))
        return None if value is None else _restore_value(kind, value, where)
    if hasattr(kind, "_fields"):
        return _restore_row(kind, value, where)
    if origin in (tuple, frozenset):
        if not isinstance(value, list):
            raise ValueError(f"{where} is {show_value(value)}, expected a list")
        each = (_restore_value(members[0], item, f"{where}[{i}]") for i, item in enumerate(value))
        return origin(each)
    if dataclasses.is_dataclass(kind):
        return restore(typing.cast("type[object]", kind), value, where)
    if issubclass(kind, enum.Enum):
        return _restore_choice(kind, value, where)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ValueError(f"{where} is {show_value(value)}, expected {_EXPECTED[kind]}")
    return value


def _restore_row(kind: Any, value: object, where: str) -> object:  # noqa: ANN401 - a NamedTuple
    names = kind._fields
    if not isinstance(value, list) or len(value) != len(names):
        raise ValueError(f"{where} is {show_value(value)}, expected a list of {', '.join(names)}")
    kinds = typing.get_type_hints(kind)
    pairs = zip(names, value, strict=True)
    return kind(*(_restore_value(kinds[name], item, f"{where}.{name}") for name, item in pairs))


def _restore_choice(kind: type[enum.Enum], value: object, where: str) -> enum.Enum:
    try:
        return kind(value)
    except ValueError:
        choices = ", ".join(repr(member.value) for member in kind)
        raise ValueError(f"{where} is {show_value(value)}, expected one of {choices}") from None


_EXPECTED = {
    str: "a string", int: "a whole number", float: "a number", bool: "true or false",
}  # fmt: skip
