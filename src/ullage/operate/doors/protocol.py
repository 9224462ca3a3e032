"""Reads HTTP from clients with llhttp, and holds little of what never becomes a request.

llhttp is strict about what two programs could read differently, and ten times as fast as a parser
in Python, but it takes lines of any length, and waits for their ends.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections import Counter
from typing import Final

import uvicorn.protocols.http.httptools_impl as uvicorn_http

from ullage.operate.doors.refusal import LINGER_S, MAX_HEADER_BYTES, error_document

# So much of a head reaches the application, which then says what is wrong with it.
_MAX_HEAD_BYTES: Final = 2 * MAX_HEADER_BYTES
_HEAD_S: Final = 10.0  # from its first byte, or that of the connection
_LOG_S: Final = 60.0
PROBE_S: Final = 1.0  # until a client that sends no more is asked whether it is there
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_CLOSED: Final = 7  # TCP_CLOSE of Linux


class Connections:
    """The open connections of a server. One too many takes the place of that which has waited
    longest for a request: of all, or of those of its address where that has three quarters of all.

    Args:
        most: that may be open.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.waiting: dict[HttpProtocol, None] = {}
        self._peers: Counter[str] = Counter()
        self._log_s = 0.0

    def enter(self, connection: HttpProtocol) -> None:
        """Takes a new connection, and closes another for it where there are too many."""
        peer = connection.peer
        self._peers[peer] += 1
        self.waiting[connection] = None
        is_crowd = self._peers[peer] > self.most * 3 // 4
        if not is_crowd and self._peers.total() <= self.most:
            return
        oldest = next(each for each in self.waiting if each.peer == peer or not is_crowd)
        del self.waiting[oldest]
        oldest.transport.abort()
        if time.monotonic() > self._log_s:
            self._log_s = time.monotonic() + _LOG_S
            logging.getLogger("ullage.doors").warning(
                "too many connections (%d are open, %d of them from %s): those that have waited "
                "longest for a request are closed", self._peers.total(), self._peers[peer], peer,
            )  # fmt: skip

    def leave(self, connection: HttpProtocol) -> None:
        """Forgets a connection that is closed."""
        self.waiting.pop(connection, None)
        self._peers[connection.peer] -= 1
        if not self._peers[connection.peer]:
            del self._peers[connection.peer]


class HttpProtocol(uvicorn_http.HttpToolsProtocol):
    """uvicorn's protocol with bounds. What a callback raises becomes a 400, and the connection is
    closed.

    Attributes:
        limits: the connections of the server; a class for each server has them.
        tls: with it a connection begins with a handshake, which is a part of the first head.
        peer: the address of the client.
    """

    limits: Connections
    tls: ssl.SSLContext | None = None
    peer: str = ""
    _is_over: bool = False
    _is_head: bool = True
    _has_body: bool = False  # whether some of a body came with the latest piece
    _held_bytes: int = 0  # of a head, or of a line between two pieces of a body
    _deadline: asyncio.TimerHandle | None = None
    _early: bytes | None = None  # what came with the end of the handshake

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A connection is there; over TLS, its handshake begins."""
        self.transport = transport
        self.peer = str((transport.get_extra_info("peername") or ("",))[0])
        self._end_after(_HEAD_S)
        self.limits.enter(self)
        if self.tls is None or transport.is_closing():
            super().connection_made(transport)
        else:
            transport.pause_reading()  # until the bytes of the handshake go there
            self._early = b""
            self._handshake = self.loop.create_task(self._secure(transport, self.tls))

    async def _secure(self, transport: asyncio.Transport, tls: ssl.SSLContext) -> None:
        try:
            secured = await self.loop.start_tls(transport, self, tls, server_side=True)
        except OSError:
            self._forget()
        else:
            early, self._early = self._early, None
            if secured is not None and self.parser is not None:  # it is not closed again
                super().connection_made(secured)
                self.data_received(early or b"")

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        self._forget()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more: what it has asked for is answered, unless it is gone."""
        last = self.pipeline[0][0] if self.pipeline else self.cycle
        if self.tls or self._is_over or not last or last.response_complete or last.more_body:
            return False
        last.keep_alive = False
        interim = b"" if last.scope["http_version"] == "1.0" else _CONTINUE
        self.loop.call_later(PROBE_S, self._probe, interim)
        return True

    def _probe(self, interim: bytes = b"") -> None:
        """Closes the connection where the client has, as its system says to what is sent."""
        if self.transport.is_closing():
            return
        connection = self.transport.get_extra_info("socket")
        if connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _CLOSED:
            self._end()
            return
        if not self.pipeline and not self.cycle.response_started:
            self.transport.write(interim)
        self.loop.call_later(PROBE_S, self._probe)

    def _forget(self) -> None:
        self.limits.leave(self)
        self._end_after(None)

    def _end_after(self, limit_s: float | None) -> None:
        """Closes the connection then, whatever comes or is still to be sent."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if limit_s is None else self.loop.call_later(limit_s, self._end)

    def _end(self) -> None:
        self.transport.abort()

    def shutdown(self) -> None:
        """The server ends. TLS would wait until the client says that it has seen that."""
        super().shutdown()
        if self in self.limits.waiting and not self.transport.get_write_buffer_size():
            self._end()

    def timeout_keep_alive_handler(self) -> None:
        """No further request has come."""
        self._end()

    def data_received(self, data: bytes) -> None:
        """Takes what came; ends a connection whose head or line never does."""
        if self._early is not None:
            self._early += data
            return
        if self._is_over:
            return
        self._has_body = False
        super().data_received(data)
        self._held_bytes = 0 if self._has_body else self._held_bytes + len(data)
        if self._held_bytes > _MAX_HEAD_BYTES and not self._is_over:
            self.send_400_response("the head, or a line of the body, is too long")
        if self._deadline is None and self in self.limits.waiting:
            self._end_after(_HEAD_S)

    def send_400_response(self, msg: str) -> None:
        """Answers what is not a request. The connection is closed a little later: were it closed
        while more of it comes, the system would throw the answer away. Behind another it has none.
        """
        if self._is_over or self.transport.is_closing():
            return
        self._is_over = True
        last = self.cycle
        is_late = last and (last.response_started or not last.more_body)
        if is_late and not last.response_complete:
            last.keep_alive = False
            return
        body = error_document(400, msg)
        head = (
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self._end_after(LINGER_S)

    def on_message_begin(self) -> None:
        """A request begins."""
        self._is_head = True
        self._held_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or what stands behind a body in chunks."""
        if not self._is_head:
            raise ValueError("headers behind a body")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The body begins."""
        if not self.url.startswith(b"/"):
            raise ValueError("the address names a host")
        self._check_encoding()
        self._is_head = False
        self._has_body = True
        self._end_after(None)
        self.limits.waiting.pop(self, None)
        super().on_headers_complete()

    def _check_encoding(self) -> None:
        """Two programs could read another encoding, or one beside a length, differently."""
        names = [name for name, _ in self.headers]
        encodings = [value for name, value in self.headers if name == b"transfer-encoding"]
        if encodings and b"content-length" in names:
            encodings.append(b"a length beside it")
        if encodings and [each.strip().lower() for each in encodings] != [b"chunked"]:
            text = b", ".join(encodings)[:80].decode("ascii", "replace")
            why = f"the header 'transfer-encoding' is {text!r}; expected 'chunked' alone, or none"
            self.send_400_response(why)
            raise ValueError(why)

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._has_body = True
        super().on_body(body)

    def on_response_complete(self) -> None:
        """An answer is written; unless another request is there, the connection waits for one."""
        super().on_response_complete()
        if self.cycle.response_complete:
            self.limits.waiting[self] = None
            if self.transport.is_closing():  # and what the client does not take is not kept
                self._end_after(self.timeout_keep_alive)
