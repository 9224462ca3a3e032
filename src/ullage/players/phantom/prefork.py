"""Runs inside a preforked process: the program itself, up to the first call of the model that it
trains. There the process waits for orders, as a warm process does after the import of torch
(fork.py), and forks for each.

No plan changes anything before that call, so imports and the construction of the model are equal in
all runs and happen only once. The fork is an exact copy. No fork handler runs in it: such handlers
would seed `random` again and make torch refuse the device. This works only if memory is all that
has to be copied. If the program has started threads or processes by then, or has opened files, this
process ends, and the runs are started separately.

If a forked run fails, that proves nothing, because another run may have removed something that it
needs, such as a temporary directory. The parent then starts it again.

The workers of a DataLoader are processes, so here a DataLoader loads its batches itself. The device
gets the same batches. The plan that a search returns was run from the start, with workers.
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

from ullage.ground.protocol.run import RunVariables
from ullage.ground.protocol.variables import PREFORK, device_property
from ullage.players.inside.import_hooks import on_import
from ullage.players.inside.process.request_to_end import set_copied
from ullage.players.phantom.bootstrap import end_with, start
from ullage.players.phantom.fork import Orders, take_on

if TYPE_CHECKING:
    from types import ModuleType

    from ullage.act.techniques.applying.script import PlanRequest
    from ullage.players.inside.recorder import Recorder

_OF_WORKERS = frozenset(
    ("num_workers", "prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout")
)
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
"""Variables that keep libraries from starting threads, because a fork does not copy threads."""


def start_preforked() -> None:
    """Makes the program stop at the first call of its model; this process waits there."""
    orders = socket.socket(fileno=int(os.environ.pop(PREFORK)))
    orders.set_inheritable(False)
    files = _open_files()

    def wait(recorder: Recorder) -> PlanRequest:
        if not _is_alone() or _open_files() != files:
            _give_up()
        request = _become_a_run(recorder, orders)
        leaving.append(recorder)
        return request

    set_copied(is_copied=True)
    leaving: list[Recorder] = []
    atexit.register(_leave, leaving)  # registered first, so called last
    on_import("tqdm.std", _start_no_monitor)
    on_import("torch.utils.data.dataloader", _start_no_workers)
    start(wait)


def _become_a_run(recorder: Recorder, orders: socket.socket) -> PlanRequest:
    """Waits for orders; returns only in the forked process of each order."""
    from ullage.act.techniques.applying.script import PlanRequest
    from ullage.players.inside import library

    _flush()
    # Ctrl-C at the terminal is for the runs; this process ends when the socket closes.
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getpid()
    order = Orders(orders, _find_fork()).wait()
    signal.signal(signal.SIGINT, interrupt)
    end_with(parent)
    take_on(order)
    library.begin_anew()
    library.never_runs_out(device_property(os.environ, "unlimited") == "1")
    set_copied(is_copied=False)
    recorder.go_on_as(RunVariables.from_environment(os.environ))
    return PlanRequest.from_environment(os.environ)


def _find_fork() -> ctypes._NamedFuncPointer:
    """Finds glibc's fork(2) without handlers (since 2.34). It skips the interpreter's handlers too,
    which a process with one thread does not need.
    """
    try:
        return ctypes.PyDLL(None)._Fork
    except AttributeError:
        _give_up()


def _is_alone() -> bool:
    """True if this process has one thread and no children."""
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        return False
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def _open_files() -> dict[str, str]:
    """The target of each file descriptor. The descriptor of this listing itself is closed before
    its target is read.
    """
    targets = {}
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            targets[entry.name] = str(entry.readlink())
    return targets


def _start_no_monitor(tqdm: ModuleType) -> None:
    """Disables tqdm's monitor, a thread that redraws progress bars."""
    with suppress(AttributeError):
        tqdm.tqdm.monitor_interval = 0


def _start_no_workers(dataloader: ModuleType) -> None:
    """Makes DataLoaders load their batches in this process."""
    kind = dataloader.DataLoader
    make = kind.__init__
    signature = inspect.signature(make)

    @functools.wraps(make)
    def make_without(loader: object, *arguments: object, **keywords: object) -> None:
        try:
            bound = signature.bind(loader, *arguments, **keywords)
        except TypeError:  # a wrong call raises its own error
            make(loader, *arguments, **keywords)
            return
        if bound.arguments.get("num_workers"):
            for name in _OF_WORKERS & bound.arguments.keys():
                bound.arguments[name] = signature.parameters[name].default
        make(*bound.args, **bound.kwargs)

    kind.__init__ = make_without


def _leave(leaving: list[Recorder]) -> None:
    """Ends a run that `--steps` stopped, without the interpreter's shutdown, which takes longer
    than the steps.
    """
    if leaving and leaving[0].exit["kind"] == "steps_reached":
        _flush()
        os._exit(0)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()


def _give_up() -> NoReturn:
    """Kills this process; the parent sees that the socket closes."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise SystemExit
