"""How a watched process writes its record, whatever the program has done to it: files of other
names, limits, closed standard streams, signals.

    with undisturbed():
        write_whole(path, record)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import platform
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ullage.printable import hide_secrets
from ullage.record.process import host
from ullage.record.process.settings import launcher_rank
from ullage.trace.record_schema import SCHEMA
from ullage.version import __version__

if TYPE_CHECKING:
    from ullage.trace.record_schema import ExitFields, ProgramFields

_STDERR = 2


def write_whole(path: Path, content: Mapping[str, Any]) -> None:
    """Whole or not at all, whatever the program did to its own files."""
    path.parent.mkdir(parents=True, exist_ok=True)  # it may have emptied the temporary directory
    aside = path.with_suffix(path.suffix + ".part")
    with os.fdopen(_open_high(aside), "wb") as file:
        os.fchmod(file.fileno(), 0o600)  # whatever its umask
        pickle.dump(content, file, protocol=pickle.HIGHEST_PROTOCOL)
    aside.replace(path)


def program_fields(torch: ModuleType, started_s: float, exit_: ExitFields) -> ProgramFields:
    """What ran, and how it ended or stands."""
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
