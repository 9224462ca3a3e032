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
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from starlette.types import Receive, Scope, Send

from ullage.operate.doors.access import check_local, find_holder, header
from ullage.operate.doors.refusal import Refusal, send_refusal, send_whole
from ullage.operate.front.policy.admission import Admission
from ullage.operate.front.policy.engine_ledger import Budget, Engine
from ullage.operate.front.policy.lengths import Lengths
from ullage.operate.front.policy.request import Request
from ullage.operate.front.policy.versions import Versions
from ullage.operate.front.proxy.board import Board
from ullage.operate.front.proxy.fields import FIELDS
from ullage.operate.front.proxy.head import check_head
from ullage.operate.front.proxy.metrics import METRICS_TYPE, write_admin_page, write_metrics
from ullage.operate.front.proxy.monitor import Monitor
from ullage.operate.front.proxy.order import Order, OrderReader
from ullage.operate.front.proxy.relay import Relay, cut_off
from ullage.operate.front.proxy.upstream import Upstream
from ullage.operate.front.settings import FrontSettings

_DRAIN: Final = re.compile(r"/admin/engines/([A-Za-z0-9_-]{1,64})/(drain|resume)")
_BODY_S: Final = 60.0
_LARGE_BYTES: Final = 32 * 1024
_TICK_S: Final = 0.05
_LOOK_S: Final = 1.0  # at each engine
_LARGE_AT_ONCE: Final = 4  # of a tenant
_JSON: Final = b"application/json"
_HTML: Final = b"text/html; charset=utf-8"


class BodyQueue:
    """Where large bodies of a tenant wait: few are in memory at a time, and one of them is read."""

    def __init__(self) -> None:
        self.slots = asyncio.Semaphore(_LARGE_AT_ONCE)
        self.thread = ThreadPoolExecutor(1)


@dataclass(frozen=True, slots=True)
class FrontApp:
    """Answers requests; `keys` and `queues` of large bodies are by tenant."""

    settings: FrontSettings
    board: Board
    relay: Relay
    reader: OrderReader
    keys: Mapping[str, bytes]
    queues: Mapping[str, BodyQueue]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, whatever it is."""
        if scope["type"] != "http":
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
        tenant = self._tenant(scope)
        try:
            order = await self._read(scope, receive, tenant)
        except Refusal as refusal:
            self.board.outcomes[tenant, f"refused {refusal.status}"] += 1
            raise
        # Whoever hangs up ends the task that works for him, wherever that waits.
        task = asyncio.current_task()
        gone = asyncio.create_task(_cancel_when_gone(receive, task))
        outcome = "failed"
        try:
            await self.relay.run(order, scope["path"], send)
            outcome = "answered"
        except asyncio.CancelledError:
            if task is None or not gone.done():
                raise  # the server ends
            task.uncancel()
            outcome = "hung up"
        except Refusal as refusal:
            outcome = f"refused {refusal.status}"
            raise
        except TimeoutError:
            outcome = "slow reader"
            cut_off(send)
        finally:
            gone.cancel()
            self.board.outcomes[tenant, outcome] += 1

    async def _read(self, scope: Scope, receive: Receive, tenant: str) -> Order:
        length = _length(scope)
        is_large = length is None or length > _LARGE_BYTES
        queue = self.queues[tenant]
        try:
            async with asyncio.timeout(_BODY_S), queue.slots if is_large else nullcontext():
                body = await _read_body(length or 0, receive, self.settings.max_body_bytes)
                at: dict[str, Any] = {"number": next(self.board.ids), "now_s": self.board.clock()}
                read = partial(self.reader.read, body, scope["path"], tenant, self._fits, **at)
                # Nobody else waits until a long text is counted.
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(queue.thread, read) if is_large else read()
        except TimeoutError:
            raise Refusal(408, f"the body was not there and read after {_BODY_S:.0f} s") from None

    def _fits(self, request: Request) -> bool:
        engines = self.board.admission.engines.values()
        return any(
            engine.fits_alone(request) for engine in engines if request.model in engine.spec.models
        )

    def _tenant(self, scope: Scope) -> str:
        if self.keys:
            return find_holder(scope, self.keys, "a tenant's key")
        check_local(scope, "give the tenant a key_file")
        return next(iter(self.settings.tenants))

    async def _drain(self, scope: Scope, send: Send, name: str, *, is_draining: bool) -> None:
        """Begins or ends that nothing new is sent to an engine."""
        check_head(scope, has_body=True)  # JSON: a form on a web page cannot send it
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
            find_holder(scope, {"": key}, "the admin's key")
        elif not self.settings.address.is_loopback:
            raise Refusal(403, "give the front an admin_key_file to see this from elsewhere")
        else:
            check_local(scope, "give the front an admin_key_file")


def _length(scope: Scope) -> int | None:
    """A body's length by its head; a number of more digits than any body has bytes is cut off."""
    length = header(scope, b"content-length")
    return None if length is None else int(length) if len(length) <= 18 else 10**18


async def _read_body(length: int, receive: Receive, limit_bytes: int) -> bytes:
    body, is_whole = bytearray(), False
    while True:
        if max(length, len(body)) > limit_bytes:
            raise Refusal(413, f"the body has more than {limit_bytes} bytes")
        if is_whole:
            return bytes(body)
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refusal(400, "the body broke off")
        body += message.get("body", b"")
        is_whole = not message.get("more_body", False)


async def _cancel_when_gone(receive: Receive, task: asyncio.Task[None] | None) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    if task is not None:
        task.cancel()


async def keep_on(look: Callable[[], Awaitable[None]], interval_s: float) -> None:
    """Looks again and again until it is cancelled. An error is logged, and does not end it."""
    while True:
        try:
            await look()
        except Exception:
            logging.getLogger("ullage.front").exception("%s failed; it goes on", look)
        await asyncio.sleep(interval_s)


@asynccontextmanager
async def make_front(settings: FrontSettings) -> AsyncIterator[FrontApp]:
    """The application, and all that runs beside it."""
    board = Board(_make_admission(settings))
    reader = OrderReader(settings, Versions(settings.versions, board.admission.is_served))
    upstreams = {name: Upstream(each) for name, each in settings.engines.items()}
    relay = Relay(board, upstreams, settings.slow_reader_s)
    looks = {Monitor(board, upstream).look: _LOOK_S for upstream in upstreams.values()}
    works = {board.look: _TICK_S, **looks}.items()
    tasks = [asyncio.create_task(keep_on(look, interval_s)) for look, interval_s in works]
    try:
        keys = {name: each.key for name, each in settings.tenants.items() if each.key}
        queues = {name: BodyQueue() for name in settings.tenants}
        yield FrontApp(settings, board, relay, reader, keys, queues)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for upstream in upstreams.values():
            upstream.close()


def _make_admission(settings: FrontSettings) -> Admission:
    budgets = {name: Budget(size) for name, size in settings.gpus.items()}
    engines = [
        Engine(each.spec, None if each.gpu is None else budgets[each.gpu])
        for each in settings.engines.values()
    ]
    return Admission(
        engines,
        {name: tenant.spec for name, tenant in settings.tenants.items()},
        Lengths(settings.quantile),
        max_queue=settings.max_queue,
        spare_requests=settings.spare_requests,
    )
