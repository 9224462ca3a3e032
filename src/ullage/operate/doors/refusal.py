"""A request that is answered with an error, in the form that OpenAI's clients read.

raise Refusal(429, "too many requests of this tenant wait", retry_after_s=3)
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any, Final

from starlette.types import Message, Receive, Send

MAX_HEADER_BYTES: Final = 16 * 1024
LINGER_S: Final = 2.0
"""Seconds in which the rest of a request that was answered already is read and thrown away.

Were the connection closed while it comes, the system would throw the answer away.
"""

_UNREAD: Final = (408, 413, 431)  # the rest of such a request is not read
_KINDS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_HEADERS: Final = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"))


class Refusal(Exception):
    """An answer with an error's status.

    Args:
        status: of HTTP.
        message: for the client; it has nothing of other requests in it.
        retry_after_s: when trying again may help.
    """

    def __init__(self, status: int, message: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.retry_after_s = status, message, retry_after_s


def error_document(status: int, message: str) -> bytes:
    """The JSON of an error."""
    kind = _KINDS.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return json.dumps({"error": {"message": message, "type": kind, "code": status}}).encode()


async def send_refusal(send: Send, receive: Receive, refusal: Refusal) -> None:
    """Sends it as the whole answer; then the connection is closed if there is more to be read."""
    headers = []
    if refusal.retry_after_s is not None:
        headers.append((b"retry-after", str(refusal.retry_after_s).encode()))
    if refusal.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    is_unread = refusal.status in _UNREAD
    if is_unread:
        headers.append((b"connection", b"close"))
    body = error_document(refusal.status, refusal.message)
    await send_whole(
        send, refusal.status, body, b"application/json", headers, is_last=not is_unread
    )
    if is_unread:
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while (message := await receive()).get("more_body", False):
                    del message
        await send({"type": "http.response.body", "body": b""})


def cycle_of(send: Send) -> Any:  # noqa: ANN401 - ASGI has no word for it
    """The holder of an application's exchange: uvicorn's; None for another server."""
    return getattr(send, "__self__", None)


async def send_whole(
    send: Send, status: int, body: bytes, content_type: bytes,
    headers: list[tuple[bytes, bytes]] | None = None, *, is_last: bool = True,
) -> None:  # fmt: skip
    """Sends an answer of which all is known; unless `is_last`, an empty piece is to follow."""
    length = str(len(body)).encode()
    start: Message = {
        "type": "http.response.start",
        "status": status,
        "headers": [
            (b"content-type", content_type), (b"content-length", length), *_HEADERS,
            *(headers or []),
        ],
    }  # fmt: skip
    await send(start)
    await send({"type": "http.response.body", "body": body, "more_body": not is_last})
