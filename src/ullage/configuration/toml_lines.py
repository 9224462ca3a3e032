"""On which line of a TOML file a key stands, which Python's reader does not say.

    find_line(text, ("scenario", "train", "gpu"))       # 3

Lines are read by themselves: a header such as [scenario.train] says where what follows belongs. A
key in an inline table has the line of that table.
"""

from __future__ import annotations

import re

from ullage.parsing import parse_toml

# What stands for a key is no longer than this, and neither is it looked for further.
_MAX_CHARS = 1000
_HEADER = re.compile(r"\s*(\[\[?)(?P<keys>[^\[\]]+)\]\]?\s*(#.*)?$")
_ASSIGNED = re.compile(r"""\s*(?P<keys>(?:[^"'=#\[\]{},]|"[^"]*"|'[^']*')+?)\s*=""")


def find_line(text: str, path: tuple[str, ...]) -> int:
    """The line of a key, counted from 1; that of the nearest table around it where it has none."""
    table: tuple[str, ...] = ()
    best, best_line = 0, 1
    for number, line in enumerate(text.splitlines(), start=1):
        header = _HEADER.match(line[:_MAX_CHARS])
        assigned = _ASSIGNED.match(line[:_MAX_CHARS])
        if header:
            table = keys = _keys(header["keys"])
        elif assigned:
            keys = (*table, *_keys(assigned["keys"]))
        else:
            continue
        depth = len(keys)
        if depth > best and keys == path[:depth]:
            best, best_line = depth, number
    return best_line


def _keys(text: str) -> tuple[str, ...]:
    """The parts of a dotted key; none where that is none, as inside a text of several lines."""
    try:
        value: object = parse_toml(f"{text} = 0")
    except ValueError:
        return ()
    keys = []
    while isinstance(value, dict):
        key, value = next(iter(value.items()))
        keys.append(key)
    return tuple(keys)
