"""Speaks HTTP with one engine.

    async with upstream.open("/v1/completions", body) as answer:
        async for chunk in answer.chunks():
            ...

Only the host and the port of the configuration are ever connected to: no proxy of the environment,
no redirect, and no header of a client's is used.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Final

import aiohttp
from yarl import URL

from ullage.front.settings import EngineSettings

_CONNECT_S: Final = 20.0
_SILENT_S: Final = 600.0  # between two pieces of an answer, a long prompt among them
# Engines on uvicorn close an idle connection after 5 s; one of ours must not be in use then.
_IDLE_S: Final = 3.0
_MAX_ANSWER_BYTES: Final = 64 * 2**20
# Twice as much is read ahead of a client that takes its answer slowly.
_READ_AHEAD_BYTES: Final = 16 * 1024
_JSON: Final = {"content-type": "application/json"}
_LARGE_BYTES: Final = 2**20  # bodies from here on are written piece by piece


class EngineLost(Exception):
    """The engine cannot be reached, or its answer breaks off.

    Args:
        message: what happened.
        is_unreachable: whether nobody listens there.
    """

    def __init__(self, message: str, *, is_unreachable: bool = False) -> None:
        super().__init__(message)
        self.is_unreachable = is_unreachable


@dataclass(frozen=True, slots=True)
class Answer:
    """An engine's answer, of which the head is there."""

    status: int
    content_type: bytes
    retry_after_s: int | None
    _response: aiohttp.ClientResponse

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body, piece by piece.

        Raises:
            EngineLost: it breaks off.
        """
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, OSError) as error:
            raise EngineLost(type(error).__name__) from None

    async def read(self) -> bytes:
        """The whole body.

        Raises:
            EngineLost: it breaks off, or has more than 64 MiB.
        """
        body = bytearray()
        async for chunk in self.chunks():
            body += chunk
            if len(body) > _MAX_ANSWER_BYTES:
                raise EngineLost("its answer has more than 64 MiB")
        return bytes(body)


class Upstream:
    """The connections to an engine; made while an event loop runs."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        self._base = f"http://{host}:{settings.port}"
        headers = {"accept-encoding": "identity"}
        if settings.key is not None:
            headers["authorization"] = f"Bearer {settings.key.decode()}"
        self._session = aiohttp.ClientSession(
            # Admission says how many there are, so that the connector has no limit.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_S),
            headers=headers,
            skip_auto_headers=("User-Agent", "Accept"),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
            read_bufsize=_READ_AHEAD_BYTES,
        )

    @asynccontextmanager
    async def open(
        self, path: str, body: bytes | None = None, *, silent_s: float = _SILENT_S
    ) -> AsyncIterator[Answer]:
        """Sends a request, a POST where there is a body; the connection is closed, and so the
        request ended, where the answer is left before its end.

        Raises:
            EngineLost: there is no answer, or its head cannot be passed on.
        """
        response = await self._send(path, body, silent_s)
        try:
            kind = response.headers.get("content-type", "application/octet-stream")
            if not (200 <= response.status < 600 and kind.isascii()):
                raise EngineLost(f"status {response.status}, content type {kind!a}")
            retry_after_s = _seconds(response.headers.get("retry-after", ""))
            yield Answer(response.status, kind.encode(), retry_after_s, response)
        finally:
            response.close()  # nothing happens where all was read: the connection is kept then

    async def aclose(self) -> None:
        """Closes all connections."""
        await self._session.close()

    async def _send(self, path: str, body: bytes | None, silent_s: float) -> aiohttp.ClientResponse:
        timeout = aiohttp.ClientTimeout(sock_connect=_CONNECT_S, sock_read=silent_s)
        url = URL(self._base + path, encoded=True)
        try:
            if body is None:
                return await self._session.get(url, timeout=timeout, allow_redirects=False)
            return await self._session.post(
                url, data=body if len(body) < _LARGE_BYTES else BytesIO(body), timeout=timeout,
                headers=_JSON, allow_redirects=False,
            )  # fmt: skip
        except (aiohttp.ClientError, OSError) as error:
            is_unreachable = isinstance(error, aiohttp.ClientConnectorError)
            raise EngineLost(type(error).__name__, is_unreachable=is_unreachable) from None


def _seconds(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 6 else None
