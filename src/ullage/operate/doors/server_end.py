"""How a server ends: what runs has its time, then each client is told in the form of its answer."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from ullage.operate.doors.refusal import LINGER_S, Refusal, cycle_of, error_document, send_refusal


class EndingServer(uvicorn.Server):
    """uvicorn's server, which cancels what outlasts its time, and here waits for that, too."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Takes no more, waits as long as it may, and closes what is left a little later."""
        await super().shutdown(sockets)
        state = self.server_state
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while state.connections or state.tasks:
                    await asyncio.sleep(0.05)
        for connection in list(state.connections):
            connection.transport.abort()  # which also wakes a task that waits for the client
        if state.tasks:
            await asyncio.wait(state.tasks, timeout=LINGER_S)


def tell_clients(app: ASGIApp) -> ASGIApp:
    """The same, but a client is told that the server ends; what has no length is of events."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except asyncio.CancelledError:
            refusal = Refusal(503, "the server ends; send the request again", retry_after_s=1)
            cycle = cycle_of(send)
            if not cycle.response_started:
                await send_refusal(send, receive, refusal)
            elif cycle.chunked_encoding:
                event = b"data: " + error_document(503, refusal.message) + b"\n\n"
                await send({"type": "http.response.body", "body": event, "more_body": False})
            else:
                cycle.transport.abort()

    return answer
