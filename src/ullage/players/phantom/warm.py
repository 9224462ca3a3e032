"""A warm process: the user's interpreter with torch imported, which runs a program again and again
by forking.

Most of a short run is the import of torch. What a run is told apart by (arguments, device, output)
reaches the forked process before the program's first line, so that it does what a fresh one does;
see fork.py for that side.

    with start_warm(program, environment) as warm:
        child = warm.fork(arguments, changes, output)
        ended = child.wait()
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ullage.ground.errors import EnvironmentProblem
from ullage.ground.protocol.variables import PREFORK, WARM
from ullage.players.phantom.launch import Ended
from ullage.players.phantom.prefork import ONE_THREAD
from ullage.players.phantom.program import UserProgram


@dataclass(frozen=True, slots=True)
class _Answers:
    """The warm process's answers on one run: its process, then how that ended."""

    pid: threading.Event = field(default_factory=threading.Event)
    end: threading.Event = field(default_factory=threading.Event)
    fields: dict[str, int] = field(default_factory=dict)


class WarmChild:
    """A run in a forked process."""

    def __init__(self, answers: _Answers) -> None:
        self._answers = answers
        self._started_s = time.monotonic()
        self._was_stopped = False

    @property
    def pid(self) -> int:
        """The number of the forked process; waits until there is one.

        Raises:
            EnvironmentProblem: the warm process is gone.
        """
        self._answers.pid.wait()
        if "pid" not in self._answers.fields:
            raise EnvironmentProblem("the process that runs were to be forked from has ended")
        return self._answers.fields["pid"]

    def wait(self, timeout_s: float | None = None) -> Ended:
        """Waits for the end; a run whose end nobody saw counts as killed, and one that takes longer
        than `timeout_s` is.
        """
        timed_out_after_s = None
        if not self._answers.end.wait(timeout_s):
            self.stop()
            self._answers.end.wait()
            timed_out_after_s = timeout_s
        status = self._answers.fields.get("status", -signal.SIGKILL)
        return Ended(
            exit_code=128 - status if status < 0 else status,
            wall_s=round(time.monotonic() - self._started_s, 3),
            was_interrupted=False,
            timed_out_after_s=timed_out_after_s,
            was_killed=self._was_stopped,
        )

    def stop(self) -> None:
        """Ends the forked process, if there is one and it still runs."""
        pid = self._answers.fields.get("pid")
        if pid is not None and not self._answers.end.is_set():
            self._was_stopped = True
            os.kill(pid, signal.SIGKILL)


class WarmProcess:
    """Gives orders to the process that waits in fork.py, from any thread."""

    def __init__(self, process: subprocess.Popen[bytes], orders: socket.socket) -> None:
        self._process = process
        self._orders = orders
        self._lock = threading.Lock()
        self._runs: list[_Answers] = []
        self._is_over = False
        threading.Thread(target=self._listen, daemon=True).start()

    def fork(
        self, arguments: Sequence[str], environment: Mapping[str, str], output: Path
    ) -> WarmChild:
        """Starts a run.

        Args:
            arguments: what follows the program's name; as many as it was started with.
            environment: variables that differ from the warm process's.
            output: the file that the program's stdout and stderr are appended to.
        """
        answers = _Answers()
        with self._lock:
            order = {
                "number": len(self._runs),
                "arguments": list(arguments),
                "environment": dict(environment),
                "output": str(output),
            }
            self._runs.append(answers)
            try:
                self._orders.sendall(json.dumps(order).encode() + b"\n")
            except OSError:
                self._is_over = True
            if self._is_over:
                _give_up(answers)
        return WarmChild(answers)

    def close(self) -> None:
        """Ends the process, and the runs that are left."""
        with self._lock:
            is_idle = all(answers.end.is_set() for answers in self._runs)
        if is_idle:
            self._process.kill()  # it may still be importing torch, for nobody
        else:
            self._orders.shutdown(socket.SHUT_WR)
        self._process.wait()
        self._orders.close()

    def _listen(self) -> None:
        # A process that ends with orders unread resets the connection.
        with self._orders.makefile("rb") as lines, suppress(ConnectionResetError):
            for line in lines:
                answer: dict[str, Any] = json.loads(line)
                with self._lock:
                    answers = self._runs[answer.pop("number")]
                answers.fields.update(answer)
                answers.pid.set()
                if "status" in answer:
                    answers.end.set()
        with self._lock:
            self._is_over = True
            for answers in self._runs:
                _give_up(answers)


def _give_up(answers: _Answers) -> None:
    answers.pid.set()
    answers.end.set()


@contextmanager
def start_warm(
    program: UserProgram, environment: Mapping[str, str], *, is_preforked: bool = False
) -> Iterator[WarmProcess]:
    """Starts the process; it imports torch while the caller goes on.

    Args:
        program: what to run.
        environment: from `launch.make_environment`; what differs between runs is given with each.
        is_preforked: whether it runs the program up to the first call of its model (prefork.py).
            Runs may then differ only in what the program has not read by that call.

    Raises:
        EnvironmentProblem: the interpreter cannot be started.
    """
    ours, theirs = socket.socketpair()
    try:
        process = subprocess.Popen(
            [program.python, *program.arguments],
            env={**environment, **_orders_from(theirs.fileno(), is_preforked=is_preforked)},
            cwd=program.directory,
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except OSError as error:
        ours.close()
        raise EnvironmentProblem(
            f"{program.python!r} cannot be started: {error.strerror or error}"
        ) from None
    finally:
        theirs.close()
    warm = WarmProcess(process, ours)
    try:
        yield warm
    finally:
        warm.close()


def _orders_from(number: int, *, is_preforked: bool) -> dict[str, str]:
    return {PREFORK: str(number), **ONE_THREAD} if is_preforked else {WARM: str(number)}
