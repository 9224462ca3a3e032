"""Runs inside a held process: the program itself, up to the first call of what it trains. There it
waits for orders, as a warm process does after the import of torch (fork.py), and forks for each.

No plan has anything to do before that call, so that what comes before it, imports and the building
of a model, is the same in all runs, and is done once for all. A fork is a copy to the bit: no
handler of forks runs in it, which would seed `random` anew, and have torch refuse the device. That
is possible where nothing but memory is to be copied: a program that has started threads or
processes by then, or holds files open, ends here, and its runs are started afresh.

A copy that fails proves nothing, as one run may have taken something from another, such as a
temporary directory; whoever gives the orders tries again.

Workers of a DataLoader are processes: here it loads its batches itself, which changes nothing of
what the device is given. The plan that a search hands out was run from the start, with them.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import inspect
import os
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ullage.phantom.bootstrap import end_with, start
from ullage.phantom.fork import Orders, take_on
from ullage.protocol.variables import PREFORK, device_property
from ullage.record.session.import_hooks import on_import

if TYPE_CHECKING:
    from types import ModuleType

    from ullage.record.session.session import Session
    from ullage.techniques.applying.script import PlanRequest

_OF_WORKERS = frozenset(
    ("num_workers", "prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout")
)
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
"""What has libraries start no threads, which would not be in a copy."""


def start_preforked() -> None:
    """Has the program stop at its first call, and this process wait there."""
    orders = socket.socket(fileno=int(os.environ.pop(PREFORK)))
    orders.set_inheritable(False)
    files = _open_files()

    def wait(session: Session) -> PlanRequest:
        if not _is_alone() or _open_files() != files:
            _give_up()
        request = _become_a_run(session, orders)
        leaving.append(session)
        return request

    leaving: list[Session] = []
    atexit.register(_leave, leaving)  # the first to be registered is the last to be called
    on_import("tqdm.std", _start_no_monitor)
    on_import("torch.utils.data.dataloader", _start_no_workers)
    start(wait)


def _become_a_run(session: Session, orders: socket.socket) -> PlanRequest:
    """Waits for orders; returns once in the process of each."""
    from ullage.record.session import library
    from ullage.record.session.settings import Settings
    from ullage.techniques.applying.script import PlanRequest

    _flush()
    # Ctrl-C at the terminal is meant for the runs; this process ends when its orders do.
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getpid()
    order = Orders(orders, _find_fork()).wait()
    signal.signal(signal.SIGINT, interrupt)
    end_with(parent)
    take_on(order)
    library.never_runs_out(device_property(os.environ, "unlimited") == "1")
    session.go_on_as(Settings.from_environment(os.environ))
    return PlanRequest.from_environment(os.environ)


def _find_fork() -> ctypes._NamedFuncPointer:
    """fork(2) without handlers, the interpreter's own among them, which one thread has no need of.
    glibc has it since 2.34.
    """
    try:
        return ctypes.PyDLL(None)._Fork
    except AttributeError:
        _give_up()


def _is_alone() -> bool:
    """Whether this process has one thread and no children."""
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        return False
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def _open_files() -> dict[str, str]:
    """What each descriptor is of; that with which it is found out is gone when it is read."""
    targets = {}
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            targets[entry.name] = str(entry.readlink())
    return targets


def _start_no_monitor(tqdm: ModuleType) -> None:
    """Bars have a thread that draws them now and then where nothing else does."""
    with suppress(AttributeError):
        tqdm.tqdm.monitor_interval = 0


def _start_no_workers(dataloader: ModuleType) -> None:
    """DataLoaders load their batches in this process."""
    kind = dataloader.DataLoader
    make = kind.__init__
    signature = inspect.signature(make)

    @functools.wraps(make)
    def make_without(loader: object, *arguments: object, **keywords: object) -> None:
        try:
            bound = signature.bind(loader, *arguments, **keywords)
        except TypeError:  # a wrong call fails as it would
            make(loader, *arguments, **keywords)
            return
        if bound.arguments.get("num_workers"):
            for name in _OF_WORKERS & bound.arguments.keys():
                bound.arguments[name] = signature.parameters[name].default
        make(*bound.args, **bound.kwargs)

    kind.__init__ = make_without


def _leave(leaving: list[Session]) -> None:
    """Ends a run that was cut off after its steps without tearing the interpreter down, which takes
    longer than the steps.
    """
    if leaving and leaving[0].exit["kind"] == "steps_reached":
        _flush()
        os._exit(0)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()


def _give_up() -> NoReturn:
    """Ends the process as if it had never been: whoever gives orders sees the socket close."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise SystemExit
