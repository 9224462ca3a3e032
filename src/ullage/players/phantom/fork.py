"""Runs inside a warm process: imports torch, then forks a run of the program for each order.

site/sitecustomize.py loads it before the interpreter reads the program. The warm process itself
never runs the program. It waits for orders, one JSON object per line, on the socket in the variable
WARM, and forks for each. `become_a_run` returns only in the forked process. There the interpreter
continues with the program as if it had just started; when that imports torch, it arrives at once.

    order   {"number": 3, "arguments": ["--batch-size", "8"], "environment": {...}, "output": path}
    answer  {"number": 3, "pid": 4711}, and when the run has ended {"number": 3, "status": 0}
"""

from __future__ import annotations

import importlib.machinery
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from ullage.ground.protocol.variables import RUN_DIR, WARM
from ullage.players.phantom.bootstrap import QuietCollector, end_with, start, stubs_for_libraries

_POLL_S = 0.02
# In the directory of a run: why it was not forked after all.
REFUSAL = "refusal"


def become_a_run() -> None:
    """Waits for orders; returns only in the forked process of each order."""
    # Ctrl-C at the terminal is for the runs; this process ends when the socket closes.
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    orders = socket.socket(fileno=int(os.environ.pop(WARM)))
    orders.set_inheritable(False)
    try:
        with stubs_for_libraries(), QuietCollector():
            import torch

            # Imports what each run needs before the program's first line, once for all runs.
            import ullage.players.inside.entrances.simulated_gpu  # noqa: F401
    except BaseException:
        # The interpreter must not start the program; the parent sees that the socket closes.
        os._exit(1)
    warm = os.getpid()
    order = Orders(orders).wait()
    signal.signal(signal.SIGINT, interrupt)
    end_with(warm)
    take_on(order)
    _Hidden(torch)
    note = Path(os.environ[RUN_DIR], REFUSAL)

    def arrive(changed: list[str]) -> None:
        if changed:  # torch was imported without them
            note.write_text(f"the program sets {', '.join(changed)} before it imports torch")
            os._exit(1)

    start(arrive=arrive)


class _Hidden:
    """torch, out of sight until the program imports it: what waits for that sees it arrive."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch, self._spec, self._loader = torch, torch.__spec__, torch.__loader__
        self._modules = {
            name: module for name, module in sys.modules.items() if f"{name}.".startswith("torch.")
        }
        for name in self._modules:
            del sys.modules[name]
        sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, _path: object = None, _target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, _spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return self._torch

    def exec_module(self, _module: ModuleType) -> None:
        sys.meta_path.remove(self)
        self._torch.__spec__, self._torch.__loader__ = self._spec, self._loader
        sys.modules.update(self._modules)


class Orders:
    """The orders of one warm process, and the runs that it forked for them.

    Args:
        orders: the socket that they arrive on.
        fork: the function to fork with, such as os.fork.
    """

    def __init__(self, orders: socket.socket, fork: Callable[[], int] = os.fork) -> None:
        self._orders = orders
        self._fork = fork
        self._unread = b""
        self._numbers: dict[int, int] = {}

    def wait(self) -> dict[str, Any]:
        """Returns its order in each forked process; never returns in the warm process."""
        while True:
            ready, _, _ = select.select([self._orders], [], [], _POLL_S if self._numbers else None)
            self._reap()
            if not ready:
                continue
            received = self._orders.recv(1 << 16)
            if not received:  # the parent has closed the socket
                self._end()
            *lines, self._unread = (self._unread + received).split(b"\n")
            for line in lines:
                order: dict[str, Any] = json.loads(line)
                pid = self._fork()
                if pid == 0:
                    self._orders.close()
                    return order
                self._numbers[pid] = order["number"]
                _answer(self._orders, number=order["number"], pid=pid)

    def _reap(self) -> None:
        while self._numbers:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            number = self._numbers.pop(pid)
            _answer(self._orders, number=number, status=os.waitstatus_to_exitcode(status))

    def _end(self) -> None:
        for pid in self._numbers:
            os.kill(pid, signal.SIGKILL)
        os._exit(0)


def take_on(order: dict[str, Any]) -> None:
    """Gives the forked process the arguments, variables and output of its run."""
    nowhere = os.open(os.devnull, os.O_RDONLY)
    output = os.open(order["output"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for source, number in ((nowhere, 0), (output, 1), (output, 2)):
        os.dup2(source, number)
    os.close(nowhere)
    os.close(output)
    os.environ.update(order["environment"])
    arguments = order["arguments"]
    sys.argv[1:] = arguments
    sys.orig_argv[len(sys.orig_argv) - len(arguments) :] = arguments


def _answer(orders: socket.socket, **fields: int) -> None:
    try:
        orders.sendall(json.dumps(fields).encode() + b"\n")
    except OSError:
        os._exit(1)
