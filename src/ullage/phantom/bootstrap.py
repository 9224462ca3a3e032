"""Runs inside every Python process that `ullage run` starts: waits for torch, then watches.

Loaded by site/sitecustomize.py before the program's first line. It must not import torch itself:
programs set environment variables that torch reads at its import.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from ullage.native.libraries import LIBRARY_DIR
from ullage.protocol.variables import PARENT, PLAN_NOTES, RUN_DIR, VIRTUAL_TIME
from ullage.record.session.frameworks import note_framework
from ullage.record.session.import_hooks import Load, around_import
from ullage.record.session.tracebacks import clean_tracebacks

if TYPE_CHECKING:
    from ullage.phantom.virtual_time import VirtualTime
    from ullage.record.session.session import Session
    from ullage.techniques.applying.script import PlanRequest

_PR_SET_PDEATHSIG = 1
_COMPILE_WORKER = f"torch{os.sep}_inductor{os.sep}compile_worker{os.sep}"


def _changed_variables(before: dict[str, str]) -> list[str]:
    """The environment variables that the program has changed, which torch may read."""
    return sorted({name for name, _value in os.environ.items() ^ before.items()})


@contextlib.contextmanager
def stubs_for_libraries() -> Iterator[None]:
    """While torch is imported: NVIDIA libraries that it opens by their path are the phantom's.

    Where they are needed by name, the preloaded phantom is found without this.
    """
    original: Any = ctypes.CDLL
    stubs = LIBRARY_DIR

    def load(name: str | None, *arguments: Any, **keywords: Any) -> ctypes.CDLL:
        stub = stubs / os.path.basename(name) if name else None  # noqa: PTH119
        c_d_l_l: ctypes.CDLL = original(
            str(stub) if stub and stub.exists() else name, *arguments, **keywords
        )
        return c_d_l_l

    ctypes.CDLL = load  # type: ignore[assignment,misc]
    try:
        yield
    finally:
        ctypes.CDLL = original  # type: ignore[misc]


def end_with_parent() -> None:
    """Has the kernel end this process when the one named by the variable PARENT ends, even if
    killed.

    Only the process that `ullage run` started gets the variable, and takes it out.
    """
    parent = os.environ.pop(PARENT, "")
    if parent.isdecimal():
        end_with(int(parent))


def end_with(parent: int) -> None:
    """Has the kernel end this process when its parent ends, even if killed."""
    if os.getppid() == parent:  # else a wrapper stands between
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        os.kill(parent, 0)
    except ProcessLookupError:  # it had ended before the kernel was told
        os.kill(os.getpid(), signal.SIGKILL)
    except PermissionError:
        return


def start(wait: Callable[[Any], PlanRequest] | None = None) -> None:
    """Arranges for torch to be watched in this process, when and if it is imported.

    wait: called with what watches it at the first call of what the program trains; what it gives
        back is done from there on. None: it is known from the start.
    """
    if any(_COMPILE_WORKER in word for word in sys.orig_argv):
        return  # it asks what the device is, and takes nothing of it
    environment = dict(os.environ)
    if RUN_DIR in environment:
        note_framework(Path(environment[RUN_DIR]))
    virtual_time = _replace_clocks(environment.get(VIRTUAL_TIME, ""))

    def load_and_watch(torch: ModuleType, load: Load) -> None:
        changed = _changed_variables(environment)
        with stubs_for_libraries():
            load(torch)
        session = watch(torch, changed, environment)
        if virtual_time is not None and session is not None:
            virtual_time.begin()
        wait_for_order = (
            None if wait is None or session is None else functools.partial(wait, session)
        )
        install_plan(torch, environment, wait_for_order, session)

    around_import("torch", load_and_watch)


def _replace_clocks(text: str) -> VirtualTime | None:
    """Has the program's clocks follow the device; None: they stay real."""
    if not text:
        return None
    from ullage.phantom.virtual_time import VirtualTime

    clock = VirtualTime(*text.split(" ", 1))
    clock.install()
    return clock


def install_plan(
    torch: ModuleType,
    environment: Mapping[str, str] = os.environ,
    wait: Callable[[], PlanRequest] | None = None,
    session: Session | None = None,
) -> None:
    """Has the plan of the run applied, where it has one."""
    if PLAN_NOTES in environment or wait is not None:
        from ullage.techniques.applying.script import install_from

        install_from(environment, torch, wait, None if session is None else session.step_aside)


def watch(
    torch: ModuleType,
    changed_variables: Sequence[str] = (),
    environment: Mapping[str, str] = os.environ,
) -> Session | None:
    """Switches the recording on; the record is written however the process ends. None: there is
    nothing to watch.

    Args:
        torch: the module, imported.
        changed_variables: those that the program had changed before that.
        environment: what the process was started with; the program may have emptied its own.
    """
    from ullage.record.session import library
    from ullage.record.session.session import Session
    from ullage.record.session.settings import Settings

    if not library.is_present or not hasattr(torch._C, "_cuda_record_memory_history"):
        return None
    session = Session(torch, Settings.from_environment(environment), changed_variables)
    session.install()
    atexit.register(session.finish)
    _watch_exceptions(session)
    _watch_parts(session)
    _watch_exit(session)
    for number in (signal.SIGTERM, signal.SIGHUP):
        _watch_signal(session, number)
    return session


def _watch_exceptions(session: Any) -> None:
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


def _watch_parts(session: Any) -> None:
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


def _watch_exit(session: Any) -> None:
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


def _watch_signal(session: Any, number: int) -> None:
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
