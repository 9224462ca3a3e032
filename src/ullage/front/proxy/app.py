"""The ASGI application.

    POST /v1/chat/completions, /v1/completions    to an engine, with a tenant's key
    POST /v1/embeddings, /v1/rerank, /v1/score    likewise, to an encoder
    GET  /v1/models                               what can be asked for, with a tenant's key
    GET  /health                                  200 while an engine answers, else 503
    GET  /metrics, /admin                         with the admin's key; or from this machine alone
    POST /admin/engines/NAME/drain, .../resume    likewise: nothing new is sent to an engine

Every request gets an answer. None of a request's text is ever logged or kept.
"""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from starlette.types import Receive, Scope, Send

from ullage.doors.access import check_key, check_local, header
from ullage.doors.refusal import Refusal, send_refusal, send_whole
from ullage.front.policy.request import Request
from ullage.front.proxy.board import Board
from ullage.front.proxy.fields import FIELDS
from ullage.front.proxy.head import check_head
from ullage.front.proxy.keys import Keys
from ullage.front.proxy.metrics import METRICS_TYPE, write_admin_page, write_metrics
from ullage.front.proxy.order import Order, OrderReader
from ullage.front.proxy.relay import Relay, SlowReader
from ullage.front.settings import FrontSettings

_DRAIN: Final = re.compile(r"/admin/engines/([A-Za-z0-9_-]{1,64})/(drain|resume)")
_BODY_S: Final = 60.0
_LARGE_BYTES: Final = 64 * 1024
_JSON: Final = b"application/json"
_HTML: Final = b"text/html; charset=utf-8"


@dataclass(frozen=True, slots=True)
class FrontApp:
    """Answers requests.

    Attributes:
        settings: of the configuration.
        board: where requests wait.
        relay: brings them to engines.
        keys: of the tenants.
        reader: of bodies.
    """

    settings: FrontSettings
    board: Board
    relay: Relay
    keys: Keys
    reader: OrderReader

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, whatever it is."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        try:
            if scope["path"] in FIELDS:
                await self._complete(scope, receive, send)
            elif (match := _DRAIN.fullmatch(scope["path"])) is not None:
                await self._drain(scope, send, match[1], is_draining=match[2] == "drain")
            else:
                await self._answer_get(scope, send)
        except Refusal as refusal:
            await send_refusal(send, receive, refusal)

    async def _answer_get(self, scope: Scope, send: Send) -> None:
        check_head(scope, has_body=False)
        path = scope["path"]
        if path not in ("/v1/models", "/health", "/metrics", "/admin"):
            raise Refusal(404, f"there is no such path; there are {', '.join(FIELDS)}")
        if scope["method"] != "GET":
            raise Refusal(405, "expected GET")
        if path == "/v1/models":
            self._tenant(scope)
            names = sorted(self.reader.models)
            rows = [{"id": name, "object": "model", "owned_by": "ullage"} for name in names]
            body = json.dumps({"object": "list", "data": rows}).encode()
            await send_whole(send, 200, body, _JSON)
        elif path == "/health":
            if not any(engine.is_up for engine in self.board.admission.engines.values()):
                raise Refusal(503, "no engine answers", retry_after_s=5)
            await send_whole(send, 200, b'{"status": "ok"}', _JSON)
        elif path == "/metrics":
            self._check_admin(scope)
            await send_whole(send, 200, write_metrics(self.board), METRICS_TYPE)
        else:
            self._check_admin(scope)
            policy = b"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
            headers = [(b"content-security-policy", policy)]
            await send_whole(send, 200, write_admin_page(self.board), _HTML, headers)

    async def _complete(self, scope: Scope, receive: Receive, send: Send) -> None:
        check_head(scope, has_body=True)
        if scope["method"] != "POST":
            raise Refusal(405, "expected POST")
        tenant = self._tenant(scope)
        try:
            order, request = await self._read(scope, receive, tenant)
        except Refusal as refusal:
            self.board.outcomes[tenant, f"refused {refusal.status}"] += 1
            raise
        # Whoever hangs up ends the task that works for him, wherever that waits.
        work = asyncio.ensure_future(self.relay.run(request, order, scope["path"], send))
        gone = asyncio.ensure_future(_wait_until_gone(receive))
        outcome = "failed"
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                outcome = "hung up"
                return
            work.result()
            outcome = "answered"
        except Refusal as refusal:
            outcome = f"refused {refusal.status}"
            raise
        except SlowReader:
            outcome = "slow reader"
            _cut_off(send)
        finally:
            self.board.outcomes[tenant, outcome] += 1
            await _cancel(work)
            await _cancel(gone)

    async def _read(
        self, scope: Scope, receive: Receive, tenant: str
    ) -> tuple[Order, Request]:  # fmt: skip
        """Reads and checks a body."""
        try:
            async with asyncio.timeout(_BODY_S):
                body = await _read_body(scope, receive, self.settings.max_body_bytes)
        except TimeoutError:
            raise Refusal(408, f"the body was not there after {_BODY_S:.0f} s") from None
        read = partial(
            self.reader.read, body, scope["path"], tenant, lambda each: self._fits(each, tenant)
        )
        # Nobody else waits until a long text is counted.
        order = read() if len(body) <= _LARGE_BYTES else await asyncio.to_thread(read)
        return order, self._request(order, tenant)

    def _request(self, order: Order, tenant: str) -> Request:
        now_s = self.board.clock()
        deadline_s = self.settings.tenants[tenant].deadline_s
        return Request(
            id=self.board.make_id(),
            tenant=tenant,
            model=order.model,
            prompt_tokens=order.prompt_tokens,
            max_tokens=order.max_tokens,
            arrival_s=now_s,
            deadline_s=None if deadline_s is None else now_s + deadline_s,
            sequences=order.sequences,
            prefix=order.prefix,
            is_streamed=order.is_streamed,
        )

    def _fits(self, order: Order, tenant: str) -> bool:
        request = self._request(order, tenant)
        engines = self.board.admission.engines.values()
        return any(
            engine.fits_alone(request) for engine in engines if order.model in engine.spec.models
        )

    def _tenant(self, scope: Scope) -> str:
        tenant = self.keys.find(header(scope, b"authorization"))
        if self.settings.tenants[tenant].key is None:
            check_local(scope, "give the tenant a key_file")
        return tenant

    async def _drain(self, scope: Scope, send: Send, name: str, *, is_draining: bool) -> None:
        """Begins or ends that nothing new is sent to an engine."""
        check_head(scope, has_body=True)  # JSON: a form on a web page cannot send it
        if scope["method"] != "POST":
            raise Refusal(405, "expected POST")
        self._check_admin(scope)
        engine = self.board.admission.engines.get(name)
        if engine is None:
            raise Refusal(404, "there is no such engine")
        engine.is_draining = is_draining
        self.board.schedule()
        state = {"engine": name, "draining": is_draining, "running": len(engine.running)}
        await send_whole(send, 200, json.dumps(state).encode(), _JSON)

    def _check_admin(self, scope: Scope) -> None:
        key = self.settings.admin_key
        if key is not None:
            check_key(scope, key, "the admin's key")
        elif not self.settings.address.is_loopback:
            raise Refusal(403, "give the front an admin_key_file to see this from elsewhere")
        else:
            check_local(scope, "give the front an admin_key_file")


async def _read_body(scope: Scope, receive: Receive, limit_bytes: int) -> bytes:
    length = header(scope, b"content-length")
    too_large = Refusal(413, f"the body has more than {limit_bytes} bytes")
    if length is not None and (len(length) > 18 or int(length) > limit_bytes):
        raise too_large
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refusal(400, "the body broke off")
        body += message.get("body", b"")
        if len(body) > limit_bytes:
            raise too_large
        if not message.get("more_body", False):
            return bytes(body)


async def _wait_until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(task: asyncio.Future[None]) -> None:
    if not task.done():
        task.cancel()
        with suppress(asyncio.CancelledError, Refusal, SlowReader):
            await task


def _cut_off(send: Send) -> None:
    """Closes the connection of a client that takes nothing, and with it what it was not sent. ASGI
    has no word for it; uvicorn's `send` belongs to what holds the connection.
    """
    transport = getattr(getattr(send, "__self__", None), "transport", None)
    if transport is not None:
        transport.abort()
