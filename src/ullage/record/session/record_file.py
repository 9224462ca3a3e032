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
import resource
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_STDERR = 2


def write_whole(path: Path, content: Mapping[str, Any]) -> None:
    """Whole or not at all, whatever the program did to its own files."""
    path.parent.mkdir(parents=True, exist_ok=True)  # it may have emptied the temporary directory
    aside = path.with_suffix(path.suffix + ".part")
    with os.fdopen(_open_high(aside), "wb") as file:
        os.fchmod(file.fileno(), 0o600)  # whatever its umask
        pickle.dump(content, file, protocol=pickle.HIGHEST_PROTOCOL)
    aside.replace(path)


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
