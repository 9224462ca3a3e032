"""A client of few instructions: HTTP over asyncio's streams, so that it is not what is measured."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any

END = b"0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Timing:
    """A request: its status, when its first and last bytes came, and the events in it."""

    status: int
    sent_s: float
    first_s: float
    last_s: float
    events: int

    @property
    def first_token_s(self) -> float:
        """Seconds to the first piece of the body."""
        return self.first_s - self.sent_s


class Connection:
    """A connection that is used again and again."""

    def __init__(self, port: int, key: str) -> None:
        self.port, self.key = port, key
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, fields: dict[str, Any], path: str = "/v1/completions") -> Timing:
        """Sends a request and reads all of the answer."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self._streams
        body = json.dumps({"model": "stub", **fields}, separators=(",", ":")).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer {self.key}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        sent_s = time.monotonic()
        writer.write(head.encode() + body)
        top = await reader.readuntil(b"\r\n\r\n")
        status = int(top.split(b" ", 2)[1])
        length = next(
            (
                int(line[15:])
                for line in top.lower().split(b"\r\n")
                if line[:15] == b"content-length:"
            ),
            None,
        )
        if length is not None:
            rest = await reader.readexactly(length)
            now_s = time.monotonic()
            return Timing(status, sent_s, now_s, now_s, rest.count(b"\n\n"))
        first_s, events, tail = 0.0, 0, b""
        while not tail.endswith(END):
            chunk = await reader.read(65536)
            if not chunk:
                raise ConnectionError("the answer broke off")
            first_s = first_s or time.monotonic()
            events += chunk.count(b"data: {")
            tail = (tail + chunk)[-len(END) :]
        return Timing(status, sent_s, first_s, time.monotonic(), events)

    async def close(self) -> None:
        """Hangs up."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None
