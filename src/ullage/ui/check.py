"""The check on the phantom that the page has asked for: at most one, in the background."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from ullage.errors import SpecError

__all__ = ["Check"]

_TOLD_LINES: Final = 12
_LINE_BYTES: Final = 64 * 2**20  # the run document is one line
_PATIENCE_S: Final = 5.0


class Check:
    """One run of the phantom.

    Attributes:
        progress: the last line that the run said of itself; None before the first step.
        document: the run document, once it is there.
        error: why there is none.
    """

    def __init__(self) -> None:
        self.progress: str | None = None
        self.document: Mapping[str, Any] | None = None
        self.error: str | None = None
        self._process: Process | None = None
        self._follower: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._follower is not None and not self._follower.done()

    @property
    def state(self) -> dict[str, Any]:
        """What the page is told."""
        return {
            "running": self.is_running,
            "progress": self.progress,
            "document": self.document,
            "error": self.error,
        }

    async def start(self, asked: Mapping[str, Any]) -> None:
        """Starts it.

        Raises:
            SpecError: one is running.
        """
        if self.is_running:
            raise SpecError("a check is running; cancel it, or wait for its end")
        self.progress = self.document = self.error = None
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "ullage.ui.check_child",
            stdin=PIPE, stdout=PIPE, stderr=PIPE, limit=_LINE_BYTES,
        )  # fmt: skip
        self._follower = asyncio.create_task(self._follow(self._process, json.dumps(asked)))

    async def cancel(self) -> None:
        """Ends it, and waits for the end."""
        process, follower = self._process, self._follower
        if process is None or follower is None or follower.done():
            return
        with suppress(ProcessLookupError):
            process.terminate()
        done, _ = await asyncio.wait({follower}, timeout=_PATIENCE_S)
        if not done:
            with suppress(ProcessLookupError):
                process.kill()
            await follower
        self.document, self.error = None, "the check was cancelled"

    async def _follow(self, process: Process, asked: str) -> None:
        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise RuntimeError("the check was started without pipes")
        told: deque[str] = deque(maxlen=_TOLD_LINES)
        listener = asyncio.create_task(_listen(process.stderr, told))
        with suppress(ConnectionError):
            process.stdin.write(asked.encode())
            await process.stdin.drain()
            process.stdin.close()
        async for line in process.stdout:
            said = json.loads(line)
            self.progress = said.get("progress", self.progress)
            self.document = said.get("document", self.document)
            self.error = said.get("error", self.error)
        await process.wait()
        await listener
        if self.document is not None and self.document["verdict"] == "failed":
            self.error = "the program failed:\n" + "\n".join(told)
        elif self.document is None and self.error is None:
            self.error = "the check ended without a result:\n" + "\n".join(told)


async def _listen(stream: asyncio.StreamReader, told: deque[str]) -> None:
    """Keeps the last lines of what a program prints, however long they are."""
    rest = ""
    while chunk := await stream.read(2**16):
        *lines, rest = (rest + chunk.decode(errors="replace")).split("\n")
        told.extend(line[:500] for line in lines if line.strip())
        rest = rest[-500:]
