"""The variables of frames: of the functions that run, and of those that an exception has left."""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator
from functools import lru_cache
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

from ullage.players.inside.owners import notebook

_MAX_FRAMES = 1_000
_ASKS = frozenset(("locals", "vars", "f_locals"))
_ASKS_AS_FUNCTION = frozenset(("eval", "exec", "dir"))  # a method may be called so: model.eval()
_BY_NAME = frozenset(("LOAD_GLOBAL", "LOAD_NAME"))


def running_frames() -> Iterator[FrameType]:
    """The frames of all threads, the innermost of each first.

    Frames of ullage are among them: were a variable left to hold one, frame and variable would keep
    each other, and with them all that the frames below hold.
    """
    frames: list[FrameType | None] = list(sys._current_frames().values())
    while frames:
        here = frames.pop()
        while here is not None:
            yield here
            here = here.f_back


def frames_of(traceback: TracebackType) -> list[FrameType]:
    """The frames of a traceback, the innermost first: it has what was made last."""
    frames: list[FrameType] = []
    part: TracebackType | None = traceback
    while part is not None and len(frames) < _MAX_FRAMES:
        frames.append(part.tb_frame)
        part = part.tb_next
    return frames[::-1]


def place_of(frame: FrameType) -> str:
    """The function of a frame, and the cell where that was written: "train() of cell 5"."""
    code = frame.f_code
    cell = notebook.cell_name(code.co_filename)
    if not code.co_flags & CO_OPTIMIZED:
        return cell or Path(code.co_filename).name
    return f"{code.co_name}() of {cell}" if cell else f"{code.co_name}()"


def variables_of(frame: FrameType) -> list[tuple[str, Any]]:
    """The variables of a function that runs or has run.

    Before Python 3.13 a frame keeps the dict that it answers with, and so every variable a second
    time: it is emptied, unless the function may have asked for it itself.
    """
    code = frame.f_code
    if not code.co_flags & CO_OPTIMIZED:
        return []
    if sys.version_info >= (3, 13):
        return list(frame.f_locals.items())
    if _may_ask(code):
        return []
    namespace = frame.f_locals
    variables = list(namespace.items())
    namespace.clear()
    return variables


def namespace_of(frame: FrameType) -> list[tuple[str, Any]]:
    """The variables of code that is not a function, such as a cell, unless they are a module's,
    where they are found anyway.
    """
    if frame.f_code.co_flags & CO_OPTIMIZED:
        return []
    namespace = frame.f_locals
    modules = list(sys.modules.values())
    if any(getattr(module, "__dict__", None) is namespace for module in modules):
        return []
    return list(namespace.items())


@lru_cache(maxsize=512)
def _may_ask(code: CodeType) -> bool:
    if not _ASKS.isdisjoint(code.co_names):
        return True
    return not _ASKS_AS_FUNCTION.isdisjoint(code.co_names) and any(
        step.opname in _BY_NAME and step.argval in _ASKS_AS_FUNCTION
        for step in dis.get_instructions(code)
    )
