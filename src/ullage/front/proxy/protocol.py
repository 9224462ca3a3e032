"""Reads HTTP from clients with llhttp, and holds little of what never becomes a request.

uvicorn.Config(app, http=HttpProtocol)

llhttp is strict about what two programs could read differently, and ten times as fast as a parser
in Python, but it takes lines of any length.
"""

from __future__ import annotations

from typing import Final

import uvicorn.protocols.http.httptools_impl as uvicorn_http

from ullage.front.proxy.head import MAX_HEADER_BYTES
from ullage.front.proxy.refusal import LINGER_S, error_document

# So much of a head reaches the application, which then says what is wrong with it.
_MAX_HEAD_BYTES: Final = 2 * MAX_HEADER_BYTES


class HttpProtocol(uvicorn_http.HttpToolsProtocol):
    """uvicorn's protocol with bounds. What a callback raises becomes a 400, and the connection is
    closed.
    """

    _is_over: bool = False
    _is_head: bool = True
    _has_body: bool = False  # whether some of a body came with the latest piece
    _held_bytes: int = 0  # of a head, or of a line between two pieces of a body

    def data_received(self, data: bytes) -> None:
        """Takes what came; ends a connection whose head or line never does."""
        if self._is_over:
            return
        self._has_body = False
        super().data_received(data)
        self._held_bytes = 0 if self._has_body else self._held_bytes + len(data)
        if self._held_bytes > _MAX_HEAD_BYTES and not self._is_over:
            self.send_400_response("the head, or a line of the body, is too long")

    def send_400_response(self, msg: str) -> None:
        """Answers what is no request. The connection is closed a little later: were it closed while
        more of it comes, the system would throw the answer away.
        """
        self._is_over = True
        if self.transport.is_closing():
            return
        body = error_document(400, msg)
        head = (
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.loop.call_later(LINGER_S, self.transport.close)

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
        self._is_head = False
        self._has_body = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._has_body = True
        super().on_body(body)
