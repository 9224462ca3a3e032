"""The check that the page requests, by the phantom or by vLLM: at most one, in the background.

The process that runs it reads what is asked from stdin as JSON, and writes JSON objects to stdout,
one a line: {"progress": "..."}, and at the end {"document": ...} or {"error": "..."}.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from ullage.ground.errors import SpecError

_NUM_ERROR_LINES: Final = 12
_LINE_BYTES: Final = 64 * 2**20  # the run document is one line
_PATIENCE_S: Final = 5.0
_POLL_S: Final = 0.1
TIME_LIMIT_S: Final = 600.0


class Check:
    """One check at a time, and the result of the last.

    Attributes:
        progress: the last line that the run said of itself; None before the first step.
        document: the run document, once it is there.
        error: why there is none.
    """

    def __init__(self) -> None:
        self.progress: str | None = None
        self.document: Mapping[str, Any] | None = None
        self.error: str | None = None
        self._follower: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """True if the check is running."""
        return self._follower is not None and not self._follower.done()

    @property
    def state(self) -> dict[str, Any]:
        """The state, as the page reads it."""
        return {
            "running": self.is_running,
            "progress": self.progress,
            "document": self.document,
            "error": self.error,
        }

    async def start(
        self,
        command: Sequence[str],
        order: object,
        *,
        scratch: Path | None = None,
        time_limit_s: float = TIME_LIMIT_S,
    ) -> None:
        """Starts a check.

        Args:
            command: of the process, which gets a session of its own.
            order: what it reads, as JSON.
            scratch: the directory for its temporary files; None: the system's.
            time_limit_s: after which it is ended.

        Raises:
            SpecError: one is running, or the process cannot be started.
        """
        if self.is_running:
            raise SpecError("a check is running; cancel it, or wait for its end")
        self.progress = self.document = self.error = None
        own = {} if scratch is None else {"TMPDIR": str(scratch)}
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=PIPE, stdout=PIPE, stderr=PIPE, limit=_LINE_BYTES,
                env={**os.environ, **own}, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise SpecError(f"{command[0]} cannot be started: {error.strerror}") from None
        self._follower = asyncio.create_task(self._run(process, order, time_limit_s))

    async def cancel(self) -> None:
        """Ends the check, and waits for its end."""
        follower = self._follower
        if follower is None or follower.done():
            return
        follower.cancel()
        with suppress(asyncio.CancelledError):
            await follower
        self.document, self.error = None, "the check was cancelled"

    async def _run(self, process: Process, order: object, limit_s: float) -> None:
        try:
            await asyncio.wait_for(self._follow(process, json.dumps(order)), limit_s)
        except TimeoutError:
            self.document, self.error = None, f"the check had no result after {limit_s:g} s"
        finally:
            await _end(process)

    async def _follow(self, process: Process, order: str) -> None:
        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise RuntimeError("the check was started without pipes")
        last_lines: deque[str] = deque(maxlen=_NUM_ERROR_LINES)
        listener = asyncio.create_task(_listen(process.stderr, last_lines))
        with suppress(ConnectionError):
            process.stdin.write(order.encode())
            await process.stdin.drain()
            process.stdin.close()
        reader = asyncio.create_task(self._read(process.stdout))
        await _wait(process)
        _kill_group(process)  # what it has started may hold the pipes open
        await reader
        await listener
        if self.document is not None and self.document.get("verdict") == "failed":
            self.error = "the program failed:\n" + "\n".join(last_lines)
        elif self.document is None and self.error is None:
            self.error = "the check ended without a result:\n" + "\n".join(last_lines)

    async def _read(self, stream: asyncio.StreamReader) -> None:
        async for line in stream:
            try:
                message = json.loads(line)
            except ValueError:
                continue  # what a library prints past Python
            if not isinstance(message, dict):
                continue
            self.progress = message.get("progress", self.progress)
            self.document = message.get("document", self.document)
            self.error = message.get("error", self.error)


async def _wait(process: Process) -> None:
    """Waits for the end of the process; its own `wait` also waits until its pipes are closed."""
    while process.returncode is None:
        await asyncio.sleep(_POLL_S)


def _kill_group(process: Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


async def _end(process: Process) -> None:
    """Terminates the process, kills it where it goes on, and kills the rest of its group."""
    with suppress(ProcessLookupError):
        process.terminate()
    with suppress(TimeoutError):
        await asyncio.wait_for(_wait(process), _PATIENCE_S)
    _kill_group(process)
    await process.wait()


async def _listen(stream: asyncio.StreamReader, last_lines: deque[str]) -> None:
    """Keeps the last lines of a program's output, however long they are."""
    rest = ""
    while chunk := await stream.read(2**16):
        *lines, rest = (rest + chunk.decode(errors="replace")).split("\n")
        last_lines.extend(line[:500] for line in lines if line.strip())
        rest = rest[-500:]
