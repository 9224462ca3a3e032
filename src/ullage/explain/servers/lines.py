"""Figures in lines of a log: the first match of a table of patterns, cleaned of colours."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Final

from ullage.ground.units import GIB, MIB

_COLOUR: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# 80 MiB of log is a day of a busy server; its start is at its beginning.
MOST_CHARS: Final = 80 * MIB
_LINE_CHARS: Final = 32 * 1024  # the options of SGLang's start take a third
NUMBER: Final = r"(?<!\d)(-?\d+(?:\.\d+)?)"  # begins in no place but its first digit
_PAIR: Final = re.compile(r"\b(\w+)=('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^,()\s]+)")


def clean(text: str) -> str:
    """The text without colours, and the beginnings of its lines."""
    lines = _COLOUR.sub("", text[:MOST_CHARS]).split("\n")
    return "\n".join([line[:_LINE_CHARS] for line in lines])


def first(pattern: str, text: str) -> re.Match[str] | None:
    """The first match, across lines where the pattern says so."""
    return re.search(pattern, text)


def number(text: str) -> int:
    """A whole number with commas: "461,712"."""
    return int(text.replace(",", ""))


def size(text: str, unit: int = GIB) -> int:
    """Bytes of a number in GiB, or in another unit."""
    return round(float(text.replace(",", "")) * unit)


def options_of_dict(text: str) -> Mapping[str, str]:
    """The fields of a printed dict; empty where it is none, or was cut off."""
    try:
        fields = dict(ast.literal_eval(text))  # in braces there may also be a set
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        # The plain entries of a dict that holds more than literals.
        entries = re.findall(r"'(\w+)': ('[^']*'|-?[\w.]+)", text)
        return {name: value.strip("'") for name, value in entries}
    return {str(name): str(value) for name, value in fields.items()}


def options_of_call(text: str) -> Mapping[str, str]:
    """The fields of a printed call: "ServerArgs(model_path='m', tp_size=2)"."""
    return {name: value.strip("'\"") for name, value in _PAIR.findall(text)}
