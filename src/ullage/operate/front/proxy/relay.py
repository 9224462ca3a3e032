"""Brings one request to an engine and its answer back.

    await Relay(board, upstreams, slow_reader_s).run(order, path, send)

An engine that is lost before the client has got anything is replaced by another. Later than that
the client is told in the stream. What the request held is given back in any case.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from typing import Final

from starlette.types import Message, Send

from ullage.operate.doors.refusal import Refusal, cycle_of, error_document, send_whole
from ullage.operate.front.policy.request import Request
from ullage.operate.front.proxy.board import Board
from ullage.operate.front.proxy.order import Order
from ullage.operate.front.proxy.upstream import Answer, EngineLost, Upstream

_ATTEMPTS: Final = 3  # an engine that is killed breaks one off, and refuses the next
_EVENT_END: Final = b"\n\n"
_USAGE: Final = re.compile(rb'"completion_tokens"\s*:\s*([0-9]{1,9})')


@dataclass(frozen=True, slots=True)
class Relay:
    """The means by which answers are brought back.

    Attributes:
        board: where requests wait, and what they hold is counted.
        upstreams: the engines, by name.
        slow_reader_s: seconds that a client may take for one piece.
    """

    board: Board
    upstreams: Mapping[str, Upstream]
    slow_reader_s: float

    async def run(self, order: Order, path: str, send: Send) -> None:
        """Answers a request.

        Raises:
            Refusal: nothing was sent to the client; this is its answer.
            TimeoutError: it does not take what is sent, and has to be cut off.
        """
        request = order.request
        for _ in range(_ATTEMPTS):
            start = await self.board.place(request)
            is_whole = False
            try:
                with closing(await self.upstreams[start.engine].send(path, order.body)) as answer:
                    if request.is_streamed and answer.status == 200:
                        is_whole = await self._stream(request, order, answer, send)
                    else:
                        is_whole = await self._send_whole(request, order, answer, send)
                return
            except EngineLost as error:
                if error.is_unreachable:
                    self.board.set_up(start.engine, is_up=False)
            finally:
                self.board.finish(request.id, is_whole=is_whole)
            request = replace(request, id=next(self.board.ids))
        raise Refusal(502, "the engines broke off the answer; try again", retry_after_s=1)

    async def _send_whole(self, request: Request, order: Order, answer: Answer, send: Send) -> bool:
        """Reads all of the answer, so that one that breaks off can be asked for again."""
        body = await answer.read()
        if 300 <= answer.status < 400:
            raise Refusal(502, "the engine answered with a redirection, which is not followed")
        is_whole = answer.status == 200
        if is_whole:
            self._count(request, 0, body[-4096:])
        headers = _own_headers(order)
        if answer.retry_after_s is not None:
            headers.append((b"retry-after", str(answer.retry_after_s).encode()))
        await self._in_time(
            send, send_whole(send, answer.status, body, answer.content_type, headers)
        )
        return is_whole

    async def _in_time(self, send: Send, sending: Awaitable[None]) -> None:
        """Waits until the client takes what is sent."""
        # uvicorn waits where the connection is full already: a timer for each piece is dear.
        flow = getattr(cycle_of(send), "flow", None)
        is_free = flow is not None and not flow.write_paused
        async with nullcontext() if is_free else asyncio.timeout(self.slow_reader_s):
            await sending

    async def _stream(self, request: Request, order: Order, answer: Answer, send: Send) -> bool:
        """Passes the pieces on as they come; counts the events in them as tokens."""
        num_events = 0
        is_started = is_last = False
        try:
            while not is_last:
                chunk = await answer.read_piece()
                is_last = answer.is_read
                num_events += chunk.count(_EVENT_END)
                self._count(request, num_events, chunk)
                if not is_started:
                    await send(_head(answer, order))
                    is_started = True
                message = {"type": "http.response.body", "body": chunk, "more_body": not is_last}
                await self._in_time(send, send(message))
        except EngineLost:
            if not is_started:
                raise
            # The status is sent already, so the stream itself has to say it.
            event = b"data: " + error_document(502, "the engine broke off the answer") + _EVENT_END
            await send({"type": "http.response.body", "body": event, "more_body": False})
        return is_last

    def _count(self, request: Request, num_events: int, text: bytes) -> None:
        usage = _USAGE.findall(text) if b'"completion_tokens"' in text else ()
        generated = -(-int(usage[-1] if usage else num_events) // request.sequences)
        if generated:
            self.board.advance(request.id, generated)


def _own_headers(order: Order) -> list[tuple[bytes, bytes]]:
    """The headers that tell the client what the front has assumed or changed."""
    headers = [
        (b"x-ullage-prompt-tokens", str(order.request.prompt_tokens).encode()),
        (b"x-ullage-model", order.request.model.encode("ascii", "replace")),
    ]
    if order.num_trimmed:
        headers.append((b"x-ullage-trimmed-messages", str(order.num_trimmed).encode()))
    return headers


def _head(answer: Answer, order: Order) -> Message:
    return {
        "type": "http.response.start",
        "status": answer.status,
        "headers": [
            (b"content-type", answer.content_type), (b"cache-control", b"no-store"),
            (b"x-content-type-options", b"nosniff"), *_own_headers(order),
        ],
    }  # fmt: skip


def cut_off(send: Send) -> None:
    """Closes the connection of a client that takes nothing, and with it what it was not sent."""
    cycle = cycle_of(send)
    if cycle is not None:
        cycle.transport.abort()
        cycle.disconnected = True  # else uvicorn logs an answer without an end
