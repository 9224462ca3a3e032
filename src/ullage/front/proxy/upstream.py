"""Speaks HTTP with one engine.

    async with upstream.open("/v1/completions", body) as answer:
        async for chunk in answer.chunks():
            ...

Only the host and the port of the configuration are ever connected to: no proxy of the environment,
no redirect, and no header of a client's is used.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import httpx

from ullage.front.settings import EngineSettings

__all__ = ["Answer", "EngineLost", "Upstream"]

_CONNECT_S: Final = 20.0
_WRITE_S: Final = 30.0
_SILENT_S: Final = 600.0  # between two pieces of an answer, a long prompt among them
# A pool looks through all its connections for each request, so that large ones are slow.
_POOL_CONNECTIONS: Final = 64
# Engines on uvicorn close an idle connection after 5 s; one of ours must not be in use then.
_IDLE_S: Final = 3.0
_MAX_ANSWER_BYTES: Final = 64 * 2**20


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
    _response: httpx.Response

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body, piece by piece.

        Raises:
            EngineLost: it breaks off.
        """
        stream = self._response.stream
        if not isinstance(stream, httpx.AsyncByteStream):
            raise TypeError(f"the stream is {stream!r}, expected one of an asynchronous transport")
        try:
            async for chunk in stream:
                yield chunk
        except (httpx.HTTPError, httpx.StreamError) as error:
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
    """The connections to an engine."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        self._base = f"http://{host}:{settings.port}"
        self._headers = {
            "host": f"{host}:{settings.port}",
            "accept-encoding": "identity",
        }
        if settings.key is not None:
            self._headers["authorization"] = f"Bearer {settings.key.decode()}"
        count = -(-settings.spec.max_requests // _POOL_CONNECTIONS)
        self._pools = [
            httpx.AsyncHTTPTransport(
                trust_env=False,
                retries=0,
                limits=httpx.Limits(
                    max_connections=None,
                    max_keepalive_connections=16,
                    keepalive_expiry=_IDLE_S,
                ),
            )
            for _ in range(count)
        ]
        self._open = [0] * count

    @asynccontextmanager
    async def open(
        self, path: str, body: bytes | None = None, *, silent_s: float = _SILENT_S
    ) -> AsyncIterator[Answer]:
        """Sends a request, a POST where there is a body; the connection is closed, and so the
        request ended, where the answer is left before its end.

        Raises:
            EngineLost: there is no answer.
        """
        number = min(range(len(self._pools)), key=self._open.__getitem__)
        self._open[number] += 1
        try:
            response = await self._send(self._pools[number], path, body, silent_s)
            try:
                yield Answer(
                    response.status_code,
                    response.headers.get("content-type", "application/octet-stream").encode(),
                    _seconds(response.headers),
                    response,
                )
            finally:
                await response.aclose()
        finally:
            self._open[number] -= 1

    async def aclose(self) -> None:
        """Closes all connections."""
        for pool in self._pools:
            await pool.aclose()

    async def _send(
        self, pool: httpx.AsyncHTTPTransport, path: str, body: bytes | None, silent_s: float
    ) -> httpx.Response:
        headers = dict(self._headers)
        if body is not None:
            headers["content-type"] = "application/json"
        timeout = {"connect": _CONNECT_S, "read": silent_s, "write": _WRITE_S, "pool": None}
        request = httpx.Request(
            "GET" if body is None else "POST", f"{self._base}{path}", headers=headers,
            content=body, extensions={"timeout": timeout},
        )  # fmt: skip
        try:
            return await pool.handle_async_request(request)
        except (httpx.HTTPError, httpx.StreamError) as error:
            is_unreachable = isinstance(error, httpx.ConnectError)
            raise EngineLost(type(error).__name__, is_unreachable=is_unreachable) from None


def _seconds(headers: Mapping[str, str]) -> int | None:
    text = headers.get("retry-after", "")
    return int(text) if text.isdigit() and len(text) < 6 else None
