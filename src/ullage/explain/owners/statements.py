"""The statements of a program's own files that make allocations, if the files still exist.

statement_at("src/train.py", 32)       "return F.scaled_dot_product_attention(q, k, v)"
"""

from __future__ import annotations

import ast
import stat
from functools import cache
from pathlib import Path

from ullage.ground.units import MIB

# A snapshot may name any file, so only regular files of the size of a program are read.
_MAX_BYTES = MIB


def statement_at(file: str, line: int) -> str:
    """The smallest statement that covers a line; empty if the file cannot be read."""
    text = source_of(file)
    covering = [
        (end - begin, begin, end)
        for begin, end in _statements(text)
        if begin <= line <= end
    ]  # fmt: skip
    if not covering:
        return ""
    _, begin, end = min(covering)
    return "\n".join(text.splitlines()[begin - 1 : end])


@cache
def source_of(file: str) -> str:
    """The text of a Python file; empty if it cannot be read."""
    path = Path(file)
    if path.suffix != ".py":
        return ""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES:
            return ""
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):  # a name with a zero byte, or another encoding
        return ""


@cache
def _statements(text: str) -> tuple[tuple[int, int], ...]:
    """The first and the last line of each statement that contains no other."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    return tuple(
        (node.lineno, node.end_lineno or node.lineno)
        for node in nodes
        if isinstance(node, ast.stmt) and not hasattr(node, "body")
    )
