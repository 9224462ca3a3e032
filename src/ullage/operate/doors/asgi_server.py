"""The parts of ullage's servers: a socket, and uvicorn with bounds."""

from __future__ import annotations

import importlib.util
import logging
import resource
import socket
import ssl
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from ullage.ground.address import Address
from ullage.ground.errors import EnvironmentProblem, SpecError

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

_IDLE_S: Final = 30  # longer than clients keep connections that they do not use
_MAX_CONNECTIONS: Final = 16 * 1024  # half a GiB of heads that do not end
_OWN_DESCRIPTORS: Final = 64


def check_installed(what: str, extra: str, modules: Iterable[str]) -> None:
    """Accepts an environment that has what a server needs.

    Raises:
        EnvironmentProblem: a module is missing.
    """
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise EnvironmentProblem(
            f"{what} needs {missing[0]}, which is not installed; install it with: "
            f"pip install 'ullage[{extra}]'"
        )


def listen(address: Address, remedy: str) -> socket.socket:
    """A socket that listens.

    Raises:
        SpecError: it cannot, as when another program does; with the `remedy`.
    """
    try:
        family, *_, place = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        is_six = family == socket.AF_INET6
        listener = socket.create_server(place, family=family, dualstack_ipv6=is_six)
    except OSError as error:
        why = error.strerror or error
        raise SpecError(f"{address} cannot be listened on ({why}); {remedy}") from None
    # Connections inherit it. asyncio sets it on sockets whose protocol is named alone, and without
    # it the end of an answer waits 40 ms for the client's acknowledgement of its beginning.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def raise_descriptors() -> int:
    """Raises the soft limit of descriptors to the hard one; how many connections of clients leave
    as many to engines.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    return min(limit // 2 - _OWN_DESCRIPTORS, _MAX_CONNECTIONS)


def make_server(
    app: ASGIApp, connections: int, *, grace_s: int, tls: ssl.SSLContext | None = None
) -> uvicorn.Server:
    """A server, which runs until SIGINT or SIGTERM, or `should_exit`.

    Args:
        app: in ASGI.
        connections: that may be open.
        grace_s: what requests have that run then; those that take longer are told.
        tls: None: it speaks plain HTTP.
    """
    import uvicorn

    from ullage.operate.doors.protocol import Connections, HttpProtocol
    from ullage.operate.doors.server_end import EndingServer, tell_clients

    class Protocol(HttpProtocol):
        limits = Connections(connections)

    Protocol.tls = tls
    config = uvicorn.Config(
        tell_clients(app), log_level=logging.ERROR, access_log=False, server_header=False,
        date_header=False, proxy_headers=False, ws="none", http=Protocol,
        loop="asyncio",  # uvloop gives the bytes of a handshake to the protocol before
        # So many are accepted at once, before any is counted.
        backlog=min(1024, connections // 4),
        timeout_graceful_shutdown=grace_s, timeout_keep_alive=_IDLE_S,
    )  # fmt: skip
    return EndingServer(config)
