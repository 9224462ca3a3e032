"""The files of a record: when they are due, and how they are replaced as a whole, whatever the
program has done to its process: files of other names, limits, closed standard streams, signals.

    with undisturbed():
        write_whole(path, record)
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import pickle
import platform
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ullage.ground.printable import hide_secrets
from ullage.ground.protocol.run import launcher_rank
from ullage.ground.version import __version__
from ullage.log.record_schema import SCHEMA
from ullage.players.inside.process import host, levels

if TYPE_CHECKING:
    from ullage.log.record_schema import ExitFields, ProgramFields

RUNNING = "this was written while the program ran: what it did later is not in it"
"""The remark of a record that is not the last."""
_MAX_SHARE = 20  # of the time between two writings one part in so many is for writing
_STDERR = 2


class RecordFile:
    """Where a record goes: each file, and whether torch's snapshot is in it, too; none for a record
    that is not kept.

    Args:
        find_paths: gives those of the process that runs now.
        flush_s: how many seconds there are between two writings while the program runs; None: it
            is not written then.
        is_live: whether it is written while the program runs, at least when memory runs out.

    Attributes:
        mark: of a process of a run, which says why there is no record; None: it is said on stderr.
    """

    def __init__(
        self,
        find_paths: Callable[[], list[tuple[Path, bool]]],
        flush_s: float | None = None,
        *,
        is_live: bool = False,
    ) -> None:
        self.mark: Path | None = None
        self.is_live = is_live
        self.find_paths = find_paths
        self._flush_s = flush_s
        self._written_s = time.monotonic()
        self._cost_s = 0.0
        self._is_writing = False

    @property
    def is_affordable(self) -> bool:
        """True if so much time has passed that writing takes a small share of it."""
        return time.monotonic() - self._written_s >= _MAX_SHARE * self._cost_s

    @property
    def is_due(self) -> bool:
        """True if the state is to be written while the program runs."""
        if self._flush_s is None or not self.is_affordable:
            return False
        return time.monotonic() - self._written_s >= self._flush_s

    def write(self, make: Callable[[], Iterable[tuple[Path, Mapping[str, Any]]]]) -> Path | None:
        """Replaces the files by what `make` gives for each; returns the last. None: there is none,
        it is being written, or it could not be, which is said. What was there before stays then.
        """
        paths = self.find_paths()
        if not paths or self._is_writing:
            return None
        self._is_writing, began_s = True, time.monotonic()
        levels.excuse(self.mark, levels.WRITING)
        try:
            with _without_collector():
                for path, content in make():
                    write_whole(path, content)
            levels.excuse(self.mark, "")
        except Exception as error:  # the program goes on, in whatever state it is
            self._say(paths[-1][0], error)
            return None
        finally:
            self._is_writing, self._written_s = False, time.monotonic()
            self._cost_s = self._written_s - began_s
        return paths[-1][0]

    def _say(self, path: Path, error: Exception) -> None:
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        kind = type(error).__name__
        if self.mark is not None:
            levels.excuse(self.mark, f"{kind}: {text}" if text else kind)
            return
        with contextlib.suppress(OSError):
            path.with_suffix(path.suffix + ".part").unlink(missing_ok=True)
        print(f"ullage: {str(path)!r} could not be written: {text or kind}", file=sys.stderr)


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


def write_whole(path: Path, content: Mapping[str, Any]) -> None:
    """Whole or not at all, whatever the program did to its own files."""
    path.parent.mkdir(parents=True, exist_ok=True)  # it may have emptied the temporary directory
    aside = path.with_suffix(path.suffix + ".part")
    with os.fdopen(_open_high(aside), "wb") as file:
        os.fchmod(file.fileno(), 0o600)  # whatever its umask
        pickle.dump(content, file, protocol=pickle.HIGHEST_PROTOCOL)
    aside.replace(path)


def program_fields(torch: ModuleType, started_s: float, exit_: ExitFields) -> ProgramFields:
    """The program that ran, and how it ended or stands."""
    return {
        "schema": SCHEMA,
        "ullage": __version__,
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "argv": list(hide_secrets(sys.argv)),
        "pid": os.getpid(),
        "rank": launcher_rank(),
        "started_s": started_s,
        "ended_s": time.time(),
        "exit": exit_,
        "host_peak_bytes": host.peak_bytes(),
    }


def _open_high(path: Path) -> int:
    """Opens a file above the numbers of stdin, stdout and stderr: where those are closed, what
    others print would land in it.
    """
    low = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    if low > _STDERR:
        return low
    try:
        return fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _STDERR + 1)
    finally:
        os.close(low)


def lift_limits() -> None:
    """Takes back what limits the program has set itself: they are not for its record."""
    for name in ("AS", "DATA", "FSIZE", "NOFILE"):
        limit = getattr(resource, f"RLIMIT_{name}")
        with contextlib.suppress(OSError, ValueError):
            _soft, hard = resource.getrlimit(limit)
            resource.setrlimit(limit, (hard, hard))


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Signals that end a process wait for nothing here: they are ignored, as it is ending."""
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            before[number] = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # one that is not Python's cannot be put back
                signal.signal(number, handler)
