"""Found by the interpreter of a fork server: imports what the tests' programs import, then becomes
each of them by forking. client.py starts it and says what is to be run.

The interpreter has been started with the name of a file that does not exist, and comes here before
it opens that. In a forked process the arguments, variables, directory, files and module path of the
program take the place of the server's, in the interpreter's own configuration too; it then goes on
as one that was started so, with no frame of ours below the program's.

What is imported stays hidden until the program imports it, so that what waits for an import (as the
recorder waits for torch) sees it arrive.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import fcntl
import gc
import importlib
import importlib.machinery
import importlib.util
import json
import os
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Any

HERE = str(Path(__file__).resolve().parent)
MAX_BYTES = 1 << 20
MAX_FILES = 64
CONFIG_WORDS = 256
WORD = ctypes.sizeof(ctypes.c_void_p)


# What the interpreter itself has added: LC_CTYPE where there is no locale.
_STARTED_WITH = Path("/proc/self/environ").read_bytes().split(b"\0")
_OWN = {
    name: text for name, text in os.environ.items()
    if os.fsencode(f"{name}={text}") not in _STARTED_WITH
}  # fmt: skip


class Configuration:
    """The interpreter's own record of what it was asked to run.

    Python offers no way to change it; the fields are found by the file that this interpreter was
    started with. run_command and run_module come before run_filename (PyConfig, since 3.8).
    """

    def __init__(self) -> None:
        find = ctypes.pythonapi._PyInterpreterState_GetConfig
        find.restype = ctypes.c_void_p
        find.argtypes = [ctypes.c_void_p]
        ctypes.pythonapi.PyInterpreterState_Get.restype = ctypes.c_void_p
        begin = find(ctypes.pythonapi.PyInterpreterState_Get())
        text = sys.argv[0].encode(f"utf-{8 * ctypes.sizeof(ctypes.c_wchar)}-le") + b"\0"
        with open("/proc/self/mem", "rb", 0) as memory:  # noqa: PTH123 - reads where nothing is, too

            def is_text(address: int) -> bool:
                return _read(memory, address, len(text)) == text

            words = range(begin, begin + CONFIG_WORDS * WORD, WORD)
            pointers = {at: _pointer(memory, at) for at in words}
            self._argv = next(
                at for at, there in pointers.items() if is_text(_pointer(memory, there))
            )
            self._filename = next(at for at, there in pointers.items() if is_text(there))
        self._decode = ctypes.pythonapi.Py_DecodeLocale  # its memory is freed as the old one's
        self._decode.restype = ctypes.c_void_p
        self._decode.argtypes = [ctypes.c_char_p, ctypes.c_void_p]

    def ask_for(self, arguments: list[str]) -> None:
        """Makes the interpreter go on to these: `FILE ...`, `-m MODULE ...` or `-c TEXT ...`."""
        kind = arguments[0] if arguments[0] in ("-c", "-m") else "file"
        if kind == "file":
            self._set(
                self._filename,
                f"{Path.cwd()}/{arguments[0]}" if arguments[0][0] != "/" else arguments[0],
            )
        else:
            text = arguments[1] + "\n" * (kind == "-c")
            ctypes.c_void_p.from_address(self._filename).value = None
            self._set(self._filename - (1 if kind == "-m" else 2) * WORD, text)
            arguments = [kind, *arguments[2:]]
        items = ctypes.c_void_p.from_address(self._argv).value
        assert items is not None, "the arguments were found there"
        self._set(items, arguments[0])
        sys.argv[:] = arguments

    def _set(self, at: int, text: str) -> None:
        ctypes.c_void_p.from_address(at).value = self._decode(os.fsencode(text), None)


def _read(memory: Any, address: int, num_bytes: int) -> bytes:
    try:
        memory.seek(address)
        found: bytes = memory.read(num_bytes)
    except (OSError, OverflowError, ValueError):
        return b""
    return found


def _pointer(memory: Any, address: int) -> int:
    return int.from_bytes(_read(memory, address, WORD), sys.byteorder)


class Hidden:
    """Modules that are imported and stay out of sight until somebody imports them."""

    def __init__(self, names: list[str]) -> None:
        modules = [sys.modules.pop(name) for name in names if name in sys.modules]
        self._modules = {module.__name__: (module, module.__spec__) for module in modules}

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        if name not in self._modules:
            return None
        spec = copy.copy(self._modules[name][1])
        spec.loader = self
        return spec

    def create_module(self, spec: Any) -> Any:
        return self._modules[spec.name][0]

    def exec_module(self, module: Any) -> None:
        _, module.__spec__ = self._modules.pop(module.__name__)
        module.__loader__ = module.__spec__.loader
        if not self._modules:
            sys.meta_path.remove(self)


class Server:
    """Waits for orders, each on a connection of its own; see `client.ForkedProcess`."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._connections: dict[int, socket.socket] = {}
        self._pids: dict[int, int] = {}  # of a connection
        self._ends: dict[int, int] = {}  # the connection of a process's descriptor
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)

    def wait(self) -> tuple[dict[str, Any], list[int]]:
        """Returns in each forked process, with its order and the files that came with it."""
        while True:
            for number, _ in self._poll.poll():
                if number == self._listener.fileno():
                    self._accept()
                elif number in self._ends:
                    self._reap(number)
                elif number in self._pids:
                    self._abandon(number)
                elif number in self._connections:
                    received = self._receive(number)
                    if received is not None:
                        return received

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        self._connections[connection.fileno()] = connection
        self._poll.register(connection, select.POLLIN)

    def _receive(self, number: int) -> tuple[dict[str, Any], list[int]] | None:
        connection = self._connections[number]
        text, files, _, _ = socket.recv_fds(connection, MAX_BYTES, MAX_FILES)
        if not text:
            self._forget(number)
            return None
        pid = os.fork()
        if pid == 0:
            self._listener.close()
            for other in self._connections.values():
                other.close()
            for end in self._ends:
                os.close(end)
            return json.loads(text), list(files)
        for file in files:
            os.close(file)
        end = os.pidfd_open(pid)
        self._pids[number], self._ends[end] = pid, number
        self._poll.register(end, select.POLLIN)
        self._answer(number, {"pid": pid})
        return None

    def _reap(self, end: int) -> None:
        number = self._ends.pop(end)
        self._poll.unregister(end)
        os.close(end)
        pid = self._pids.pop(number)
        _, status = os.waitpid(pid, 0)
        self._answer(number, {"status": status})
        self._forget(number)

    def _abandon(self, number: int) -> None:
        """Whoever wanted the process is gone, and it goes too."""
        os.kill(self._pids[number], signal.SIGKILL)
        self._poll.unregister(self._connections[number])

    def _answer(self, number: int, answer: dict[str, int]) -> None:
        try:
            self._connections[number].send(json.dumps(answer).encode())
        except OSError:
            return

    def _forget(self, number: int) -> None:
        connection = self._connections.pop(number)
        with contextlib.suppress(KeyError):
            self._poll.unregister(connection)
        connection.close()


def take_on(order: dict[str, Any], files: list[int], configuration: Configuration) -> None:
    """The forked process gets all that its program was started with."""
    high = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 200) for file in files]
    for file in files:
        os.close(file)
    for file, number in zip(high, order["files"], strict=True):
        os.dup2(file, number)
        os.close(file)
    if order["is_session"]:
        os.setsid()
    os.chdir(order["directory"])
    own_path = _module_path()
    os.environ.clear()
    os.environ.update({**_OWN, **order["environment"]})
    sys.path[:] = [*_module_path(), *(entry for entry in sys.path if entry not in own_path)]
    importlib.invalidate_caches()
    sys.orig_argv[1:] = order["arguments"]
    configuration.ask_for(order["arguments"])


def _module_path() -> list[str]:
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [os.path.abspath(entry) for entry in entries if entry]  # noqa: PTH100 - as site does


def keep_for_ever() -> None:
    """What is imported is not taken apart again at the end of each process, nor looked at by the
    collector: both would copy all of its pages.
    """
    gc.collect()
    gc.freeze()
    contents = [list(vars(module).values()) for module in list(sys.modules.values())]
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(contents))


def become_a_program() -> None:
    """Imports, waits for orders, and returns in the process of each."""
    settings = json.loads(os.environ.pop("FORK_SERVER"))
    listener = socket.socket(fileno=settings["listener"])
    listener.set_inheritable(False)
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    for name in settings["paths"]:
        sys.path.insert(0, name)
    importlib.import_module(settings["prepare"]).prepare(settings)
    configuration = Configuration()
    keep_for_ever()
    os.close(settings["ready"])
    order, files = Server(listener).wait()
    signal.signal(signal.SIGINT, interrupt)
    for name in settings["paths"]:
        sys.path.remove(name)
    take_on(order, files, configuration)
    if settings["hidden"]:
        sys.meta_path.insert(0, Hidden(settings["hidden"]))


def run_next() -> None:
    """The sitecustomize that the program would have had."""
    others = [entry for entry in sys.path if os.path.realpath(entry) != HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


become_a_program()
run_next()
