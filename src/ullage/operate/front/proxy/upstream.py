"""Speaks HTTP with one engine.

    with closing(await upstream.send("/v1/completions", body)) as answer:
        while piece := await answer.read_piece():
            ...

Only the host and the port of the configuration are ever connected to: no proxy of the environment,
no redirect, and no header of a client's is used. An answer is a connection that was lent: once all
of it was read it serves another request, and where it is left before, it is closed, and so the
request ended.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Final

import httptools

from ullage.operate.front.settings import EngineSettings

_CONNECT_S: Final = 20.0
_SILENT_S: Final = 600.0  # between two pieces of an answer, a long prompt among them
# Engines on uvicorn close an idle connection after 5 s; one of ours must not be in use then.
_IDLE_S: Final = 3.0
_MAX_ANSWER_BYTES: Final = 64 * 2**20
_MAX_HEAD_BYTES: Final = 64 * 1024
_READ_AHEAD_BYTES: Final = 32 * 1024  # of a client that takes its answer slowly


class EngineLost(Exception):
    """The engine cannot be reached (nobody listens there), or its answer breaks off."""

    def __init__(self, message: str, *, is_unreachable: bool = False) -> None:
        super().__init__(message)
        self.is_unreachable = is_unreachable


class Answer(asyncio.Protocol):
    """A connection, and the answer on it; a `status` of 0: its head is not there."""

    status: int
    content_type: bytes
    retry_after_s: int | None
    _transport: asyncio.Transport
    _parser: httptools.HttpResponseParser
    _timer: asyncio.TimerHandle  # ends an answer of which nothing comes for long

    def __init__(self, idle: dict[Answer, float]) -> None:
        self._idle = idle
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None
        self._trouble = ""

    def start(self, head: bytes, body: bytes, silent_s: float) -> None:
        """Sends a request."""
        self.status, self.content_type, self.retry_after_s = 0, b"application/octet-stream", None
        self._pieces: list[bytes] = []
        self._num_bytes = 0  # of a head, or of pieces
        self._is_done = self._is_kept = self._has_end = False
        self._silent_s, self._came_s = silent_s, self._loop.time()
        self._timer = self._loop.call_later(silent_s, self._end_silence)
        self._parser = httptools.HttpResponseParser(self)
        self._transport.writelines((head, body))

    async def read_head(self) -> None:
        """Waits for the head.

        Raises:
            EngineLost: it does not come, or cannot be passed on.
        """
        while not self.status:
            await self._wait()
        self._num_bytes = sum(map(len, self._pieces))

    async def read_piece(self) -> bytes:
        """A piece of the body; empty: there was all of it.

        Raises:
            EngineLost: it breaks off.
        """
        while not self._pieces and not self._is_done:
            await self._wait()
        piece = b"".join(self._pieces)
        self._pieces.clear()
        if self._num_bytes > _READ_AHEAD_BYTES and not self._trouble:
            self._came_s = self._loop.time()
            self._transport.resume_reading()
        self._num_bytes = 0
        return piece

    async def read(self) -> bytes:
        """The whole body.

        Raises:
            EngineLost: it breaks off, or has more than 64 MiB.
        """
        body = bytearray()
        while piece := await self.read_piece():
            body += piece
            if len(body) > _MAX_ANSWER_BYTES:
                raise EngineLost("its answer has more than 64 MiB")
        return bytes(body)

    @property
    def is_read(self) -> bool:
        """True if all of the body was read."""
        return self._is_done and not self._pieces

    def close(self) -> None:
        """Keeps the connection for another request where all of the answer is there."""
        self._timer.cancel()
        if self._is_kept and self.is_read and not self._trouble:
            self._idle[self] = time.monotonic()
        else:
            self.abort("it is left")

    async def _wait(self) -> None:
        if self._trouble:
            raise EngineLost(self._trouble)
        self._waiter = self._loop.create_future()
        await self._waiter

    def _end_silence(self) -> None:
        left_s = self._came_s + self._silent_s - self._loop.time()
        if left_s <= 0:
            self.abort("it is silent")
        else:
            self._timer = self._loop.call_later(left_s, self._end_silence)

    def abort(self, trouble: str) -> None:
        """Closes the connection; who waits for the answer gets an error that says why."""
        self._trouble = self._trouble or trouble
        self._transport.abort()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # What asyncio calls.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """It is connected."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Takes what came."""
        self._came_s = self._loop.time()
        try:
            self._parser.feed_data(data)
        except Exception as error:  # of the parser, or what a callback below raises
            self.abort(type(error).__name__)
        if not self.status:
            self._num_bytes += len(data)
            if self._num_bytes > _MAX_HEAD_BYTES:
                self.abort("its head is too long")
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """The engine has hung up, which ends a body whose length nothing says."""
        self._idle.pop(self, None)
        self._timer.cancel()
        if exc is None and not self._trouble and self.status and not self._has_end:
            self._is_done = True
        self._trouble = self._trouble or type(exc or EOFError()).__name__
        self._wake()

    # What the parser calls.

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header."""
        name = name.lower()
        if name == b"content-type":
            if not value.isascii():
                raise EngineLost(f"content type {value!a}")
            self.content_type = value
        elif name == b"retry-after":
            self.retry_after_s = int(value) if value.isdigit() and len(value) < 6 else None
        elif name in (b"content-length", b"transfer-encoding"):
            self._has_end = True

    def on_headers_complete(self) -> None:
        """The body begins."""
        status = self._parser.get_status_code()
        if self._is_done or not 200 <= status < 600:  # done: the engine is out of step
            raise EngineLost(f"status {status}")
        self.status = status

    def on_body(self, body: bytes) -> None:
        """A piece of it."""
        self._pieces.append(body)
        self._num_bytes += len(body)
        if self._num_bytes > _READ_AHEAD_BYTES:
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        """There was all of it."""
        self._is_done, self._is_kept = True, self._parser.should_keep_alive()


class Upstream:
    """The connections to an engine."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.address = settings.address
        head = f" HTTP/1.1\r\nhost: {self.address}\r\naccept-encoding: identity\r\n"
        if settings.key is not None:
            head += f"authorization: Bearer {settings.key.decode()}\r\n"
        self._head = head
        # Admission says how many are in use, so that nothing else bounds them.
        self._idle: dict[Answer, float] = {}

    async def send(
        self, path: str, body: bytes | None = None, *, silent_s: float = _SILENT_S
    ) -> Answer:
        """Sends a request, a POST where there is a body; the answer is to be closed.

        Raises:
            EngineLost: there is no answer, or its head cannot be passed on.
        """
        head = f"GET {path}{self._head}\r\n"
        if body is not None:
            head = (
                f"POST {path}{self._head}content-type: application/json\r\n"
                f"content-length: {len(body)}\r\n\r\n"
            )
        while True:
            answer, is_used = await self._take()
            answer.start(head.encode(), body or b"", silent_s)
            try:
                await answer.read_head()
            except EngineLost:
                # An engine may close an idle connection in the moment in which it is taken.
                if not is_used:
                    raise
            except BaseException:  # a client that has hung up
                answer.close()
                raise
            else:
                return answer

    async def _take(self) -> tuple[Answer, bool]:
        """A connection, and whether it has served a request already."""
        while self._idle:
            answer, since_s = self._idle.popitem()
            if time.monotonic() - since_s < _IDLE_S:
                return answer, True
            answer.abort("it is old")
        make = partial(Answer, self._idle)
        try:
            async with asyncio.timeout(_CONNECT_S):
                loop = asyncio.get_running_loop()
                return (await loop.create_connection(make, self.address.host, self.address.port))[
                    1
                ], False
        except OSError as error:
            is_unreachable = not isinstance(error, TimeoutError)
            raise EngineLost(type(error).__name__, is_unreachable=is_unreachable) from None

    def close(self) -> None:
        """Closes what is not in use."""
        while self._idle:
            self._idle.popitem()[0].abort("the front ends")
