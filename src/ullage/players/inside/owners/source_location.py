"""Places in the user's code: "train.py:31 in main"."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING

from ullage.players.inside.owners import notebook

if TYPE_CHECKING:
    from ullage.log.record_schema import Rows

OPS = f"torch{os.sep}_ops.py"
"""By way of it operations are called that ullage passes on."""
_OURS = str(Path(__file__).resolve().parents[3]) + os.sep
_STDLIB = str(Path(os.__file__).parent) + os.sep
_LIBRARIES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_BENEATH = tuple(f"{os.sep}{name}{os.sep}" for name in ("torch", "triton"))


def is_ours(filename: str) -> bool:
    """True if a code object comes from ullage itself."""
    return filename.startswith(_OURS)


def is_users(filename: str) -> bool:
    """True if a file is of the user's own code."""
    return not _is_hidden(filename) and not _is_library(filename)


def _is_library(filename: str) -> bool:
    return any(part in filename for part in _LIBRARIES)


def _is_hidden(filename: str) -> bool:
    """Interpreter internals: neither the user's nor a library's place."""
    is_made_up = filename.startswith("<") and notebook.cell_name(filename) is None
    if is_made_up or is_ours(filename):
        return True
    # What all libraries stand on.
    if any(part[:-1] + name in filename for part in _LIBRARIES for name in _BENEATH):
        return True
    return filename.startswith(_STDLIB) and not _is_library(filename)


def describe(frames: list[tuple[str, int, str]]) -> str | None:
    """The place that a stack, innermost frame first, stands for.

    The innermost frame of the user's own code; where a library stands between it and torch or
    Triton, that follows in brackets. None: no frame is the user's or a library's.
    """
    library = None
    for filename, line, function in frames:
        if _is_hidden(filename):
            continue
        if not _is_library(filename):
            place = f"{notebook.cell_name(filename) or Path(filename).name}:{line} in {function}"
            return f"{place} ({library})" if library else place
        library = library or f"{_short(filename)}:{line} in {function}"
    return library


def _short(filename: str) -> str:
    for part in _LIBRARIES:
        if part in filename:
            return filename.rsplit(part, 1)[1]
    return Path(filename).name


def here() -> str | None:
    """The place in the user's code that is running now.

    A thread without Python code of the user's (autograd's) works for the main thread: that one's
    place is taken.
    """
    return describe(frames_here())


def frames_here() -> list[tuple[str, int, str]]:
    """The frames of that place, innermost first."""
    frames = _stack(sys._getframe(1))
    if describe(frames) is None:
        main = sys._current_frames().get(threading.main_thread().ident or 0)
        frames = _stack(main) if main is not None else frames
    return frames


class HostReads:
    """Values read by the host that a kernel may have written: where -> count, bytes."""

    MANY = 10_000
    """Reads in a row at one place, with no step between, that look like waiting."""

    def __init__(self) -> None:
        self.rows: dict[str | None, list[int]] = {}
        self.answers: dict[str | None, str] = {}
        self._last: str | None = None
        self._in_a_row = 0

    def note(self, num_bytes: int, answer: str = "") -> str | None:
        """One more such read, here in the user's code, and the number that it got, if it was one; a
        warning, once it looks like waiting.
        """
        where = here()
        self.answers.pop(where, None)  # the latest comes last
        self.answers[where] = answer
        row = self.rows.setdefault(where, [0, 0])
        row[0] += 1
        row[1] += num_bytes
        self._in_a_row = self._in_a_row + 1 if where == self._last else 1
        self._last = where
        if self._in_a_row != self.MANY:
            return None
        return (
            f"{where or 'the program'} has read {self.MANY:,} times in a row a value that no "
            f"kernel has computed, and got {answer or 'zeros'}; if it waits there for the value to "
            "change, it waits for ever"
        )

    def end_step(self) -> None:
        """A step has ended: nobody waited."""
        self._in_a_row = 0

    def basis(self, answer: str) -> Rows:
        """The reads as in the record, all with one answer."""
        return _basis("READ", ((f"host read, {answer}", *row) for row in self.rows.items()))


class ShapeReads:
    """Shapes that depended on an unknown value: (what, where, assumption) -> count, bytes."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str | None, str], list[int]] = {}

    def note(self, what: str, num_bytes: int, assumption: str) -> None:
        """One more such shape, here in the user's code."""
        row = self.rows.setdefault((what, here(), assumption), [0, 0])
        row[0] += 1
        row[1] = max(row[1], num_bytes)

    def basis(self) -> Rows:
        """The shapes as in the record."""
        rows = ((f"{what}: {how}", where, row) for (what, where, how), row in self.rows.items())
        return _basis("SHAPE", rows)


def _basis(name: str, rows: Iterable[tuple[str, str | None, list[int]]]) -> Rows:
    # Not when the program starts: it imports dataclasses.
    from ullage.log.assumptions import Assumption, AssumptionKind

    kind = AssumptionKind[name]
    return [
        Assumption(kind, what, where or "", count, likely_bytes=size).row()
        for what, where, (count, size) in rows
    ]


def of_traceback(traceback: TracebackType | None) -> str | None:
    """The place where an exception was raised."""
    frames = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        frames.append((code.co_filename, traceback.tb_lineno, code.co_name))
        traceback = traceback.tb_next
    return describe(frames[::-1])


def _stack(frame: FrameType | None) -> list[tuple[str, int, str]]:
    frames = []
    while frame is not None:
        frames.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return frames
