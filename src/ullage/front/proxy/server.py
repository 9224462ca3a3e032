"""Serves the front until it is interrupted."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

from ullage.doors.asgi_server import check_installed, listen, make_server, raise_descriptors
from ullage.front.settings import FrontSettings

if TYPE_CHECKING:
    from ullage.front.policy.admission import Admission
    from ullage.front.proxy.app import FrontApp

_NEEDED: Final = ("aiohttp", "httptools", "orjson", "prometheus_client", "starlette", "uvicorn")
_TICK_S: Final = 0.05
_LOOK_S: Final = 1.0  # at each engine
_GRACE_S: Final = 30


def serve_front(settings: FrontSettings, announce: Callable[[str], None] = print) -> None:
    """Serves until SIGINT or SIGTERM; streams that run then have half a minute.

    Args:
        settings: of the configuration.
        announce: gets the address.

    Raises:
        EnvironmentProblem: what it needs is not installed.
        SpecError: the address is taken.
    """
    check_installed("`ullage front`", "front", _NEEDED)
    with listen(settings.address, "give front.listen another port") as listener:
        address = settings.address
        port = listener.getsockname()[1]
        announce(f"http://{type(address)(address.host, port)}")
        runner = asyncio.Runner(loop_factory=_loop_factory())
        with suppress(KeyboardInterrupt), runner:
            runner.run(_serve(settings, listener))


async def _serve(settings: FrontSettings, listener: socket.socket) -> None:
    async with make_front(settings) as app:
        # What is there now stays: the collector would look through it again and again, which
        # makes some requests wait tens of milliseconds.
        gc.collect()
        gc.freeze()
        await make_server(app, raise_descriptors(), grace_s=_GRACE_S).serve(sockets=[listener])


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
    from ullage.front.policy.versions import Versions
    from ullage.front.proxy.app import FrontApp
    from ullage.front.proxy.board import Board
    from ullage.front.proxy.keys import Keys
    from ullage.front.proxy.monitor import Monitor
    from ullage.front.proxy.order import OrderReader
    from ullage.front.proxy.relay import Relay
    from ullage.front.proxy.upstream import Upstream

    admission = _make_admission(settings)
    versions = Versions(settings.versions, admission.is_served)
    reader = OrderReader(settings, versions, _make_counter(settings))
    board = Board(admission)
    upstreams = {name: Upstream(each) for name, each in settings.engines.items()}
    relay = Relay(board, upstreams, settings.slow_reader_s)
    keys = Keys({name: tenant.key for name, tenant in settings.tenants.items()})
    looks = [Monitor(board, upstream).look for upstream in upstreams.values()]
    works = [keep_on(board.look, _TICK_S), *(keep_on(look, _LOOK_S) for look in looks)]
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield FrontApp(settings, board, relay, keys, reader)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for upstream in upstreams.values():
            await upstream.aclose()


def _make_admission(settings: FrontSettings) -> Admission:
    from ullage.front.policy.admission import Admission
    from ullage.front.policy.engine_ledger import Budget, Engine
    from ullage.front.policy.lengths import Lengths

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


def _make_counter(settings: FrontSettings) -> Callable[[str, str], int]:
    from ullage.front.proxy.tokens import make_counter

    tokenizers = {
        model: each.tokenizer
        for each in settings.engines.values()
        if each.tokenizer is not None
        for model in each.spec.models
    }
    return make_counter(tokenizers, settings.characters_per_token)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's event loop where that is installed: it takes about half as long for a request."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    import uvloop

    return lambda: uvloop.new_event_loop()  # typed, where uvloop is not installed
