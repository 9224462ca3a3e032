"""The process that marked tests are forked from, as the pytest that gives it orders sees it: the
same pytest with the same command line, under the phantom. See child.py for its own side.

    warm = WarmPytest(config, files, "a10g", number=1)
    for answer in warm.run("tests/test_a.py::test_b"):
        ...
    warm.close()
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress

import pytest

from ullage.ground.native.libraries import LIBRARY_DIR
from ullage.ground.protocol.variables import PROGRESS, RECORD
from ullage.players.phantom.device import choose_device
from ullage.players.phantom.launch import LaunchOptions, make_environment, run_directory
from ullage.players.phantom.orphan_processes import end_orphans
from ullage.players.phantom.torch_build import check_torch, find_torch
from ullage.verbs.testing.reports import Json

_SERVE = (
    "import sys; sys.path[:] = sys.argv[2:]; "
    "from ullage.verbs.testing.child import serve; serve(int(sys.argv[1]))"
)
_POLL_S = 1.0
_CLOSING_S = 10.0


class WarmPytest:
    """One process that tests are forked from.

    Attributes:
        is_ready: whether it has collected the tests.
    """

    def __init__(self, config: pytest.Config, files: Sequence[str], gpu: str, number: int) -> None:
        build = check_torch(find_torch(sys.executable), LIBRARY_DIR)
        self._stack = ExitStack()
        directory = self._stack.enter_context(run_directory())
        self._stack.callback(end_orphans, directory)
        options = LaunchOptions()
        base = dict(os.environ)
        base.pop("CUDA_VISIBLE_DEVICES", None)  # of the machine's own GPUs
        environment = make_environment(directory, choose_device(gpu), build, options, base)
        environment.pop(PROGRESS)  # nobody looks
        environment |= {
            RECORD: "0",  # child.py watches itself; what it starts is not watched
            # is_available() asks NVML then, and leaves torch in a state that can be forked.
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        }
        self.is_ready = False
        ours, theirs = socket.socketpair()
        ours.settimeout(_POLL_S)
        self._orders, self._unread = ours, b""
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _SERVE, str(theirs.fileno()), *sys.path],
                env=environment,
                pass_fds=(theirs.fileno(),),
                cwd=config.invocation_params.dir,
            )
        self._send(_setup(config, files, number))

    def run(self, nodeid: str) -> Iterator[Json]:
        """Has a test run; yields what is answered, and in the end {"why": ...} where it did not run
        to its end.
        """
        answers, is_done = self._answers(), False
        if not self.is_ready:
            self.is_ready = next(answers, None) is not None
        self._send({"run": nodeid})
        for answer in answers:
            if "ended" in answer:
                if not is_done:
                    yield {"why": _describe_end(answer["ended"])}
                if "touched_at" in answer:  # it could not fork, and has been the test's process
                    yield {"why": "", "is_gone": True, "touched_at": answer["touched_at"]}
                return
            if "unknown" in answer:
                yield {"why": _describe_unknown(answer["unknown"])}
                return
            if "is_done" in answer:
                is_done = True
            else:
                yield answer
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_CLOSING_S)
        yield {"why": _describe_gone(self._process.poll()), "is_gone": True}

    def _send(self, order: Json) -> None:
        try:
            self._orders.settimeout(None)
            self._orders.sendall(json.dumps(order, default=str).encode() + b"\n")
        except OSError:  # it is gone, which whoever waits for its answer finds out
            pass
        finally:
            self._orders.settimeout(_POLL_S)

    def _answers(self) -> Iterator[Json]:
        """Line by line, to the end of the process; others may hold its end of the socket."""
        while True:
            *lines, self._unread = self._unread.split(b"\n")
            yield from map(json.loads, lines)
            try:
                received = self._orders.recv(1 << 16)
            except TimeoutError:
                if self._process.poll() is not None:
                    return
                continue
            except OSError:
                return
            if not received:
                return
            self._unread += received

    def close(self) -> None:
        """Ends it when it is done."""
        with suppress(OSError, subprocess.TimeoutExpired):
            self._orders.shutdown(socket.SHUT_WR)
            self._process.wait(_CLOSING_S)
        self.kill()

    def kill(self) -> None:
        """Ends it, the test that runs, and what they left running."""
        self._process.kill()
        self._process.wait()
        self._orders.close()
        self._stack.close()


def _setup(config: pytest.Config, files: Sequence[str], number: int) -> Json:
    """The first order: which pytest to be."""
    factory = getattr(config, "_tmp_path_factory", None)  # private; as pytest-xdist
    base = None if factory is None else str(factory.getbasetemp() / f"gpu_memory-{number}")
    arguments = [str(argument) for argument in config.invocation_params.args]
    if config.pluginmanager.hasplugin("pytest_cov"):
        arguments.insert(0, "--no-cov")  # it would begin by erasing what is there
    return {
        "parent": os.getpid(),
        "argv": sys.argv,
        "arguments": arguments,
        "files": list(files),
        "basetemp": base,
        "workerinput": getattr(config, "workerinput", None),
    }


def _describe_end(status: int) -> str:
    """Why there is no end of a test, from how its process ended."""
    if status >= 0:
        return (
            f"the test's process ended with exit code {status} before the test did: something in "
            "it called os._exit, exited in C, or closed every file"
        )
    name = signal.Signals(-status).name
    hint = ", as the kernel does where the machine runs out of memory" * (name == "SIGKILL")
    return f"the test's process was ended by {name}{hint}; what it printed last is above"


def _describe_unknown(errors: str) -> str:
    if errors:
        return f"gpu_memory: with a GPU, the test cannot be collected:\n{errors}"
    return (
        "gpu_memory: with a GPU, there is no test of this name: its module makes other tests, or "
        "other parameters, than without one. Let it make the same ones, and skip by marks"
    )


def _describe_gone(code: int | None) -> str:
    how = "closed its connection" if code is None else f"ended (exit code {code})"
    return (
        f"gpu_memory: the process that tests are forked from {how} before it had run this one; "
        "what it printed is above"
    )
