"""Which requests of memory are for the same work as one that failed: those at the same line, within
the statement that catches the error, or in what it does then; where none catches it that can be
read, those at the same line that are called from the same lines.
"""

from __future__ import annotations

import ast
import functools
import itertools
import linecache
from collections.abc import Sequence
from typing import Any, NamedTuple

from ullage.record.owners import source_location

Frames = Sequence[tuple[str, int, str]]
_CATCHES = ("OutOfMemory", "OOM", "RuntimeError", "Exception")


class _Try(NamedTuple):
    """The lines of a statement that catches errors of memory."""

    first: int
    handlers: int
    last: int


class Place:
    """Where a request failed; `frames` are of the user's code, innermost first."""

    def __init__(self, frames: Frames) -> None:
        self.frames = tuple(frames)
        around = ((file, _find_try(file, line)) for file, line, _ in frames)
        self._catcher = next((pair for pair in around if pair[1] is not None), None)

    @property
    def key(self) -> object:
        """Equal for places of the same work."""
        return self.frames if self._catcher is None else (self.frames[0], self._catcher)

    def has(self, frames: Frames) -> bool:
        """Whether a request is for the same work."""
        if self._catcher is None:
            return tuple(frames) == self.frames
        own_file, catcher = self._catcher
        lines = [line for file, line, _ in frames if file == own_file]
        is_here = frames[:1] == list(self.frames[:1])
        return catcher is not None and any(
            (catcher.first if is_here else catcher.handlers) <= line <= catcher.last
            for line in lines
        )


def find_attempts(places: Sequence[Place], snapshot: dict[str, Any]) -> list[list[Any]]:
    """For each place the numbers of the failures there, and the bytes of all requests for the same
    work in order, negative where they failed.

    Args:
        places: of the failures, in order.
        snapshot: torch's, with the stacks of requests; from the first failure on at least.
    """
    numbers: dict[object, list[int]] = {}
    for number, place in enumerate(places):
        if place.frames:
            numbers.setdefault(place.key, []).append(number)
    rows: list[tuple[Place, list[int], list[int]]] = [
        (places[failures[0]], failures, []) for failures in numbers.values()
    ]
    known: dict[int, list[list[int]]] = {}  # the rows that a stack is of
    entries = itertools.chain(*snapshot["device_traces"])
    for entry in sorted(entries, key=lambda entry: entry.get("time_us", 0)):
        stack = entry.get("frames")
        if entry["action"] not in ("alloc", "oom") or not stack:
            continue
        if id(stack) not in known:
            frames = users_frames([(f["filename"], f["line"], f["name"]) for f in stack])
            known[id(stack)] = [sizes for place, _, sizes in rows if place.has(frames)]
        for sizes in known[id(stack)]:
            sizes.append(entry["size"] if entry["action"] == "alloc" else -entry["size"])
    return [[failures, sizes] for _, failures, sizes in rows]


def users_frames(frames: Frames) -> list[tuple[str, int, str]]:
    """The frames of the user's own code."""
    return [frame for frame in frames if source_location.is_users(frame[0])]


def _find_try(file: str, line: int) -> _Try | None:
    """The innermost statement that catches errors of memory of a line."""
    around = [each for each in _tries(file) if each.first <= line < each.handlers]
    return max(around, default=None)


@functools.cache
def _tries(file: str) -> tuple[_Try, ...]:
    """Those of a file; none where it cannot be read."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ()
    return tuple(
        _Try(node.lineno, node.handlers[0].lineno, node.handlers[-1].end_lineno or 0)
        for node in ast.walk(tree)
        if isinstance(node, ast.Try) and any(map(_catches_memory, node.handlers))
    )


def _catches_memory(handler: ast.ExceptHandler) -> bool:
    text = "Exception" if handler.type is None else ast.unparse(handler.type)
    return any(name in text for name in _CATCHES)
