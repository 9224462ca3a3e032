"""Serves the front until it is interrupted."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from ullage.operate.doors.asgi_server import check_installed, listen, make_server, raise_descriptors
from ullage.operate.front.settings import FrontSettings

_NEEDED: Final = ("httptools", "orjson", "prometheus_client", "starlette", "uvicorn")
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
    # The memory of a large body goes back to the system with the body. By itself the C library
    # keeps it: its bound rises to the largest block that was freed (mallopt(3)).
    with suppress(AttributeError):  # another C library than glibc
        ctypes.CDLL(None).mallopt(-3, 256 * 1024)  # M_MMAP_THRESHOLD of malloc.h
    with listen(settings.address, "give front.listen another port") as listener:
        announce(f"http://{replace(settings.address, port=listener.getsockname()[1])}")
        runner = asyncio.Runner(loop_factory=_loop_factory())
        with suppress(KeyboardInterrupt), runner:
            runner.run(_serve(settings, listener))


async def _serve(settings: FrontSettings, listener: socket.socket) -> None:
    from ullage.operate.front.proxy.app import make_front

    async with make_front(settings) as app:
        # What is there now stays: the collector would look through it again and again, which
        # makes some requests wait tens of milliseconds.
        gc.collect()
        gc.freeze()
        await make_server(app, raise_descriptors(), grace_s=_GRACE_S).serve(sockets=[listener])


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's event loop where that is installed: it takes about half as long for a request."""
    with suppress(ImportError):
        import uvloop

        return lambda: uvloop.new_event_loop()  # typed, where uvloop is not installed
    return None
