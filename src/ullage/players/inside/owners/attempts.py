"""Which requests of memory are for the same work as one that failed: those within the statement
that catches the error; where none can be read, those that are called from the same lines.
"""

from __future__ import annotations

import ast
import builtins
import functools
import itertools
import linecache
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from ullage.players.inside.owners import source_location

Frames: TypeAlias = tuple[tuple[str, int, str], ...]
Work: TypeAlias = tuple[str, int, int, int] | Frames
"""A file with the lines of a statement, of its first handler and of its end; or the lines of a
stack.
"""


def work_of(frames: Frames) -> Work:
    """The purpose of a request, by the frames of the user's code, innermost first."""
    for file, line, _ in frames:
        around = [lines for lines in _catchers(file) if lines[0] <= line < lines[1]]
        if around:
            return file, *max(around)
    return frames


def find_attempts(
    works: Sequence[tuple[int, Work]], traces: Iterable[Sequence[dict[str, Any]]]
) -> list[list[Any]]:
    """For each work on a device the numbers of its failures, and the bytes of all requests for it
    in order, negative where they failed.

    Args:
        works: of the failures, in order, each with its device.
        traces: of devices as in torch, from the first failure on at least.
    """
    rows: dict[tuple[int, Work], tuple[list[int], list[int]]] = {}
    for number, work in enumerate(works):
        rows.setdefault(work, ([], []))[0].append(number)
    rows = {key: row for key, row in rows.items() if key[1]}  # else there is no stack
    known: dict[int, list[tuple[int, list[int]]]] = {}  # the sizes that a stack's belong to
    entries = [
        (entry, entry.get("device", device))
        for device, trace in enumerate(traces)
        for entry in trace
    ]
    entries.sort(key=lambda item: item[0].get("time_us", 0))
    # One that failed in backward has no stack there; the traces have the last of the failures.
    num_failed = sum(entry["action"] == "oom" for entry, _ in entries)
    failed = iter([*itertools.repeat((0, ()), num_failed), *works][-num_failed:])
    for entry, device in entries:
        if entry["action"] == "oom":
            rows.get(next(failed), ((), []))[1].append(-entry["size"])
        stack = entry.get("frames") if entry["action"] == "alloc" else None
        if not stack:
            continue
        if id(stack) not in known:
            frames = users_frames((f["filename"], f["line"], f["name"]) for f in stack)
            known[id(stack)] = [
                (key[0], row[1]) for key, row in rows.items() if _is_for(key[1], frames)
            ]
        for its_device, sizes in known[id(stack)]:
            if its_device == device:
                sizes.append(entry["size"])
    return [list(row) for row in rows.values()]


def users_frames(frames: Iterable[tuple[str, int, str]]) -> Frames:
    """The frames of the user's own code."""
    return tuple(frame for frame in frames if source_location.is_users(frame[0]))


def _is_for(work: Work, frames: Frames) -> bool:
    return work == frames or any(
        file == work[0] and work[1] <= line <= work[3] for file, line, _ in frames
    )


@functools.cache
def _catchers(file: str) -> tuple[tuple[int, int, int], ...]:
    """The lines of the statements of a file that catch errors of memory; none where it cannot be
    read.
    """
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ()
    return tuple(
        (node.lineno, node.handlers[0].lineno, node.handlers[-1].end_lineno or 0)
        for node in ast.walk(tree)
        if isinstance(node, ast.Try) and any(map(_catches_memory, node.handlers))
    )


def _catches_memory(handler: ast.ExceptHandler) -> bool:
    """Not where it names Python's own errors alone, of which a RuntimeError is none."""
    kinds = [] if handler.type is None else getattr(handler.type, "elts", [handler.type])
    names = [ast.unparse(kind) for kind in kinds] or ["Exception"]
    return any(issubclass(RuntimeError, getattr(builtins, name, Exception)) for name in names)
