"""The log of work in a watched process: switched on, marked, and written into the record.

The native library keeps it (players/phantom/csrc/machine/work_log.c): of the last steps, so that a
long run does not cost more memory than a short one.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from ctypes import POINTER, byref, c_char_p, c_int, c_int64, c_ubyte, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any

from ullage.log.record_schema import WORK_MARKS
from ullage.players.inside import library
from ullage.players.inside.part import Part

if TYPE_CHECKING:
    from ullage.ground.protocol.run import RunVariables
    from ullage.players.inside.patches import Patches

_KEPT_STEPS = 6
_ROW = struct.Struct("<QIiIHBB")
_ENTRY_BYTES = _ROW.size
_NUM_NUMBERS = 14
_ARGUMENT_BYTES = 1024

_begin = library.bind("ullage_log_begin", None)
_mark = library.bind("ullage_log_mark", None, c_int, c_uint64, c_int)
_clear = library.bind("ullage_log_clear", None)
_first = library.bind("ullage_log_first", c_uint64)
_num_entries = library.bind("ullage_num_log_entries", c_uint64, c_int)
_entries = library.bind("ullage_log_entries", None, c_int, c_uint64, c_void_p)
_after = library.bind("ullage_log_after", c_uint64, c_uint64, c_uint64, c_void_p)
end = library.bind("ullage_log_end", c_uint64)
"""The serial number of the last row."""
_num_works = library.bind("ullage_num_works", c_uint64)
_work = library.bind("ullage_work", c_char_p, c_uint64, POINTER(c_int64), POINTER(POINTER(c_ubyte)))


class WorkLog(Part):
    """The log of this process; there is one.

    is_on: whether the library writes down what the device is given.
    """

    before_step: Callable[[], object] | None = None
    """Called before the rows of earlier steps go."""

    def __init__(self, *, is_on: bool = False) -> None:
        self._is_on = is_on

    def install(self, _patches: Patches) -> None:
        """Begins."""
        if self._is_on:
            _begin()

    def go_on_as(self, run: RunVariables) -> None:
        """It may be wanted from here on."""
        if run.has_clock and not self._is_on:
            self._is_on = True
            _begin()

    def note_mark(self, kind: str) -> None:
        """The program passes a moment."""
        if self._is_on:
            _mark(WORK_MARKS.index(kind), 0, _KEPT_STEPS)

    def end_step(self, count: int) -> None:
        """A step has ended: the rows of earlier ones go."""
        if not self._is_on:
            return
        if WorkLog.before_step is not None:
            WorkLog.before_step()
        _mark(WORK_MARKS.index("step"), count, _KEPT_STEPS)

    def fields(self) -> dict[str, Any]:
        """The log, for the record; empty: none is kept."""
        if not self._is_on:
            return {}
        log = {
            "first": _first(),
            "entries": self._rows(is_captured=False),
            "captured": self.captured(),
            "works": self.works(0),
        }
        return {"work_log": log}

    def rows_after(self, serial: int) -> list[tuple[int, ...]]:
        """The rows after the one with a serial number, as far as they are kept."""
        count = max(0, end() - serial)
        rows = ctypes.create_string_buffer(_ENTRY_BYTES * count)
        num_bytes = _ENTRY_BYTES * _after(serial, count, rows)
        return [*_ROW.iter_unpack(rows.raw[:num_bytes])]

    def captured(self) -> bytes:
        """The rows that captures have collected."""
        return self._rows(is_captured=True)

    def captured_after(self, count: int) -> list[tuple[int, ...]]:
        """The rows that they have collected after this many."""
        if _num_entries(1) == count:
            return []
        return [*_ROW.iter_unpack(self.captured()[_ENTRY_BYTES * count :])]

    def works(self, first: int) -> list[list[Any]]:
        """The pieces of work from a number on."""
        return [self._row(number) for number in range(first, _num_works())]

    def _rows(self, *, is_captured: bool) -> bytes:
        count = _num_entries(int(is_captured))
        rows = ctypes.create_string_buffer(_ENTRY_BYTES * count)
        _entries(int(is_captured), count, rows)
        return rows.raw

    def _row(self, number: int) -> list[Any]:
        row, first = (c_int64 * (2 + _NUM_NUMBERS))(), POINTER(c_ubyte)()
        name = _work(number, row, byref(first))
        arguments = ctypes.string_at(first, _ARGUMENT_BYTES) if first else b""
        return [row[0], row[1], (name or b"").decode(errors="replace"), list(row[2:]), arguments]
