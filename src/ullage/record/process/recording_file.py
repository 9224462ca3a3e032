"""The file of a recording: when it is due, and how it is replaced as a whole."""

from __future__ import annotations

import contextlib
import gc
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ullage.record.process.record_file import write_whole

RUNNING = "this was written while the program ran: what it did later is not in it"
"""The remark of a file that is not the last."""
_MAX_SHARE = 20  # of the time between two writings one part in so many is for writing


class RecordingFile:
    """Where the recording goes; `path` is None for one that is not kept.

    flush_s: how many seconds there are between two writings while the program runs; None: it is not
        written then.
    """

    def __init__(self, path: Path | None, flush_s: float | None) -> None:
        self._path = path
        self._flush_s = flush_s
        self._written_s = time.monotonic()
        self._cost_s = 0.0
        self._is_writing = False

    @property
    def is_affordable(self) -> bool:
        """Whether so much time has passed that writing takes a small share of it."""
        return time.monotonic() - self._written_s >= _MAX_SHARE * self._cost_s

    @property
    def is_due(self) -> bool:
        """Whether the state is to be written while the program runs."""
        if self._flush_s is None or self._path is None or not self.is_affordable:
            return False
        return time.monotonic() - self._written_s >= self._flush_s

    def write(self, make: Callable[[], Mapping[str, Any]]) -> Path | None:
        """Replaces the file by what `make` returns; None: there is no path, it is being written, or
        it could not be, which is said on stderr. What was there before stays then.
        """
        path = self._path
        if path is None or self._is_writing:
            return None
        self._is_writing, began_s = True, time.monotonic()
        try:
            with _without_collector():
                write_whole(path, make())
        except Exception as error:  # the program goes on, whatever becomes of its record
            with contextlib.suppress(OSError):
                path.with_suffix(path.suffix + ".part").unlink(missing_ok=True)
            text = error.strerror if isinstance(error, OSError) and error.strerror else error
            print(f"ullage: {str(path)!r} could not be written: {text}", file=sys.stderr)
            return None
        finally:
            self._is_writing, self._written_s = False, time.monotonic()
            self._cost_s = self._written_s - began_s
        return path


@contextlib.contextmanager
def _without_collector() -> Iterator[None]:
    """While many objects are made that all stay: the collector would look at them again and
    again.
    """
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()
