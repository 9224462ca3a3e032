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
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, NoReturn, Protocol

from ullage.record.process.tracebacks import clean_tracebacks

if TYPE_CHECKING:
    from ullage.record.allocator.ooms import OutOfMemories
    from ullage.trace.record_schema import ExitFields


class NotesExceptions(Protocol):
    """What notes the exception that ends a process."""

    exit: ExitFields

    def note_exception(self, error: BaseException) -> None:
        """An exception that ends the program."""


class Watching(NotesExceptions, Protocol):
    """What notes the end of a process, and writes its record."""

    ooms: OutOfMemories

    def note_exit(self, code: int) -> None:
        """A call that ends the program at once."""

    def note_signal(self, number: int) -> None:
        """A signal that ends the program."""

    def finish(self) -> None:
        """Writes the record, once."""


def watch_end(session: Watching) -> None:
    """Has the session told how the program ends, and finished before it does."""
    watch_exceptions(session)
    _watch_parts(session)
    _watch_exit(session)
    for number in (signal.SIGTERM, signal.SIGHUP):
        _watch_signal(session, number)


def watch_exceptions(session: NotesExceptions) -> None:
    """Has the session told of an exception that nobody catches; it is shown as without ullage."""
    show = sys.excepthook

    def note_and_show(
        kind: type[BaseException], error: BaseException, _traceback: TracebackType | None
    ) -> None:
        session.note_exception(error)
        clean_tracebacks(error)
        show(kind, error, error.__traceback__)

    def note_unseen() -> None:
        """A program that shows exceptions itself has taken the place of our hook."""
        error = getattr(sys, "last_value", None)
        if isinstance(error, BaseException) and session.exit["kind"] == "returned":
            session.note_exception(error)

    sys.excepthook = note_and_show
    atexit.register(note_unseen)  # runs before what was registered earlier


def _watch_parts(session: Watching) -> None:
    """Exceptions that end a part of the program and not all of it: a thread, a callback."""
    show_of_thread, show_unraisable = threading.excepthook, sys.unraisablehook

    def note_thread(lost: threading.ExceptHookArgs) -> None:
        name = "" if lost.thread is None else f" {lost.thread.name!r}"
        session.ooms.note_end_of(f"thread{name}", lost.exc_value)
        error = lost.exc_value
        if error is not None:
            clean_tracebacks(error)
            arguments = (lost.exc_type, error, error.__traceback__, lost.thread)
            lost = threading.ExceptHookArgs(arguments)
        show_of_thread(lost)

    def note_callback(lost: sys.UnraisableHookArgs) -> None:
        what = getattr(lost.object, "__qualname__", None) or "a callback"
        kind = "atexit callback " if "atexit" in (lost.err_msg or "") else ""
        session.ooms.note_end_of(f"{kind}{what}", lost.exc_value)
        show_unraisable(lost)

    threading.excepthook, sys.unraisablehook = note_thread, note_callback


def _watch_exit(session: Watching) -> None:
    """A program that leaves without Python's own end still writes its record. Forked processes of
    multiprocessing all end so.
    """
    leave = os._exit

    @functools.wraps(leave)
    def finish_and_leave(status: int) -> NoReturn:
        session.note_exit(status)
        session.finish()
        leave(status)

    os._exit = finish_and_leave


def _watch_signal(session: Watching, number: int) -> None:
    """A program that leaves a signal to its default still writes its record before it dies."""
    if signal.getsignal(number) is not signal.SIG_DFL:
        return

    def finish_and_die(number: int, _frame: FrameType | None) -> None:
        session.note_signal(number)
        session.finish()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    try:
        signal.signal(number, finish_and_die)
    except ValueError:  # torch was imported in a thread that may not set handlers
        return
