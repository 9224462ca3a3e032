"""A process whose main thread is in C++ cannot run its handler of a signal. It writes its record
all the same: a thread of it waits for its parent to ask for that.

    wait_for_request(run_dir, os.getpid(), note_signal, finish)     # in the process
    ask_to_end(run_dir, 4711, signal.SIGTERM)                       # in its parent
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import os
import signal
from collections.abc import Callable
from pathlib import Path

_DEFAULT = 0  # SIG_DFL, which Python sets in the main thread alone
_is_copied = False


def request_path(run_dir: Path, pid: int) -> Path:
    """The pipe at which a process waits."""
    return run_dir / f"{pid}.end"


def reply_path(run_dir: Path, pid: int) -> Path:
    """The file that says that the program has a handler of its own, which may take its time."""
    return run_dir / f"{pid}.handles"


def ask_to_end(run_dir: Path, pid: int, number: int) -> bool:
    """Asks a process to end as if by that signal; False: it does not wait for that."""
    try:
        pipe = os.open(request_path(run_dir, pid), os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        os.write(pipe, bytes([number]))
    finally:
        os.close(pipe)
    return True


def set_copied(*, is_copied: bool) -> None:
    """Says whether this process is there to be copied, which takes that it has no other thread."""
    global _is_copied
    _is_copied = is_copied


def wait_for_request(
    run_dir: Path, pid: int, note: Callable[[int], object], finish: Callable[[], object]
) -> None:
    """Has a thread wait, which calls `note` with the number of the signal and `finish`, and ends
    the process.

    Where the program handles the signal itself, the first request is only replied to.
    """
    if _is_copied:
        return
    path = request_path(run_dir, pid)
    with contextlib.suppress(OSError):
        os.mkfifo(path, 0o600)
        _thread.start_new_thread(_wait, (path, reply_path(run_dir, pid), note, finish))


def _wait(
    path: Path, reply: Path, note: Callable[[int], object], finish: Callable[[], object]
) -> None:
    while True:
        try:
            with path.open("rb", buffering=0) as pipe:
                content = pipe.read(1)
        except OSError:  # the directory of the run is gone
            return
        if not content:
            continue
        number = content[0]
        if _is_handled(number) and not reply.exists():
            with contextlib.suppress(OSError):
                reply.touch()
            continue
        note(number)
        finish()
        ctypes.CDLL(None).signal(number, _DEFAULT)
        os.kill(os.getpid(), number)


def _is_handled(number: int) -> bool:
    """True if the program has a handler of its own for a signal."""
    handler = signal.getsignal(number)
    if handler in (signal.SIG_DFL, signal.default_int_handler):
        return False
    return not getattr(handler, "__module__", "").startswith("ullage.")
