"""TOML as in the lock file: tables, texts, whole numbers and lists of texts, in the order in
which they are given.

    render_toml({"version": 1, "scenario": {"train": {"peak_used_bytes": 2147483648}}})

    version = 1

    [scenario.train]
    peak_used_bytes = 2147483648  # 2.00 GiB
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from ullage.ground.units import KIB, format_bytes

Plain: TypeAlias = int | str | Sequence[str]
Table: TypeAlias = "Mapping[str, Plain | Table]"

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_WIDTH = 100
# Whole numbers that are no bytes.
_COUNTS = frozenset({"version", "cache_tokens", "good_requests", "requests"})


def render_toml(document: Table, header: Sequence[str] = ()) -> str:
    """The text of a document, under a comment of the lines of `header`."""
    lines = [f"# {line}" for line in header]
    return "\n".join([*lines, *_table_lines((), document)]) + "\n"


def _table_lines(path: tuple[str, ...], table: Table) -> Iterator[str]:
    """The table's own values first, since a sub-table goes on until the next begins."""
    values = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    if path and (values or not table):
        yield ""
        yield f"[{'.'.join(map(_key, path))}]"
    for key, value in values.items():
        yield from _value_lines(key, value)
    for key, inner in table.items():
        if isinstance(inner, Mapping):
            yield from _table_lines((*path, key), inner)


def _value_lines(key: str, value: Plain) -> Iterator[str]:
    if isinstance(value, int):
        # A size in words, for whoever reads the difference in a review.
        is_size = abs(value) >= KIB and key not in _COUNTS
        words = f"  # {format_bytes(value, 2)}" if is_size else ""
        yield f"{_key(key)} = {value}{words}"
        return
    if isinstance(value, str):
        yield f"{_key(key)} = {_text(value)}"
        return
    line = f"{_key(key)} = [{', '.join(map(_text, value))}]"
    if len(line) <= _WIDTH:
        yield line
        return
    yield f"{_key(key)} = ["
    yield from (f"  {_text(text)}," for text in value)
    yield "]"


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _text(key)


def _text(text: str) -> str:
    """A basic string; a lone surrogate, which no TOML holds, becomes a question mark."""
    known = text.encode("utf-8", "replace").decode()
    # JSON's escapes are TOML's too; DEL alone is not escaped there.
    return json.dumps(known, ensure_ascii=False).replace("\x7f", "\\u007f")
