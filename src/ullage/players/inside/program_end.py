"""How a program ends, noted by whoever watches it: an exception, in a thread or a callback too, an
end without Python's own, a signal.
"""

from __future__ import annotations

import atexit
import functools
import os
import signal
import sys
import threading
from types import FrameType
from typing import TYPE_CHECKING, NoReturn, Protocol

from ullage.players.inside.process.tracebacks import clean_tracebacks, show_clean_tracebacks

if TYPE_CHECKING:
    from ullage.log.record_schema import ExitFields
    from ullage.players.inside.recorder import Recorder


class NotesExceptions(Protocol):
    """An object that notes the exception that ends a process."""

    exit: ExitFields

    def note_exception(self, error: BaseException) -> None:
        """An exception that ends the program."""


def watch_end(recorder: Recorder) -> None:
    """Has the recorder told how the program ends, and finished before it does."""
    watch_exceptions(recorder)
    _watch_parts(recorder)
    _watch_exit(recorder)
    for number in (signal.SIGTERM, signal.SIGHUP):
        _watch_signal(recorder, number)


def watch_exceptions(recorder: NotesExceptions) -> None:
    """Has the recorder told of an exception that nobody catches; it is shown as without ullage."""
    show_clean_tracebacks(recorder.note_exception)

    def note_unseen() -> None:
        """A program that shows exceptions itself has taken the place of our hook."""
        error = getattr(sys, "last_value", None)
        if isinstance(error, BaseException) and recorder.exit["kind"] == "returned":
            recorder.note_exception(error)

    atexit.register(note_unseen)  # runs before what was registered earlier


def _watch_parts(recorder: Recorder) -> None:
    """Exceptions that end a part of the program and not all of it: a thread, a callback."""
    show_of_thread, show_unraisable = threading.excepthook, sys.unraisablehook

    def note_thread(lost: threading.ExceptHookArgs) -> None:
        name = "" if lost.thread is None else f" {lost.thread.name!r}"
        recorder.ooms.note_end_of(f"thread{name}", lost.exc_value)
        error = lost.exc_value
        if error is not None:
            clean_tracebacks(error)
            arguments = (lost.exc_type, error, error.__traceback__, lost.thread)
            lost = threading.ExceptHookArgs(arguments)
        show_of_thread(lost)

    def note_callback(lost: sys.UnraisableHookArgs) -> None:
        what = getattr(lost.object, "__qualname__", None) or "a callback"
        kind = "atexit callback " if "atexit" in (lost.err_msg or "") else ""
        recorder.ooms.note_end_of(f"{kind}{what}", lost.exc_value)
        show_unraisable(lost)

    threading.excepthook, sys.unraisablehook = note_thread, note_callback


def _watch_exit(recorder: Recorder) -> None:
    """A program that leaves without Python's own end still writes its record. Forked processes of
    multiprocessing all end so.
    """
    leave = os._exit

    @functools.wraps(leave)
    def finish_and_leave(status: int) -> NoReturn:
        recorder.note_exit(status)
        recorder.finish()
        leave(status)

    os._exit = finish_and_leave


def _watch_signal(recorder: Recorder, number: int) -> None:
    """A program that leaves a signal to its default still writes its record before it dies."""
    if signal.getsignal(number) is not signal.SIG_DFL:
        return

    def finish_and_die(number: int, _frame: FrameType | None) -> None:
        recorder.note_signal(number)
        recorder.finish()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    try:
        signal.signal(number, finish_and_die)
    except ValueError:  # torch was imported in a thread that may not set handlers
        return
