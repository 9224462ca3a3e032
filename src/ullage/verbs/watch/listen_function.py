"""The exporter for Prometheus: what `ullage watch --listen` is.

with open_exporter(WatchOptions(listen="9400")) as exporter:
    for sample in exporter.publish(watch_gpus()):
        print(sample.time_s)
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, Self

from ullage.ground.errors import SpecError
from ullage.verbs.watch.options import WatchOptions

if TYPE_CHECKING:
    import socket

    import uvicorn

    from ullage.operate.watch.alerts.event import Event
    from ullage.operate.watch.exporter.exposition import Exposition
    from ullage.operate.watch.sample import Sample

_CONNECTIONS: Final = 64
_NEEDED: Final = ("httptools", "prometheus_client", "starlette", "uvicorn")


class Exporter:
    """A server for the metrics of a stream of samples; it answers between `with` and its end."""

    def __init__(
        self, server: uvicorn.Server, listener: socket.socket, exposition: Exposition, url: str
    ) -> None:
        self.exposition, self.url = exposition, url
        self._server, self._listener = server, listener
        self._thread = threading.Thread(
            target=server.run, args=([listener],), name="ullage-exporter", daemon=True
        )

    def note(self, event: Event) -> None:
        """Serves an alert from when it is raised until it is cleared."""
        self.exposition.note(event)

    def publish(self, stream: Iterator[Sample]) -> Iterator[Sample]:
        """The same samples; each is served from the moment on in which it comes."""
        for sample in stream:
            self.exposition.publish(sample)
            yield sample

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._listener.close()


def open_exporter(options: WatchOptions) -> Exporter:
    """An exporter that listens, and answers once it is entered.

    Raises:
        SpecError: the options do not go together, a file is wrong, the address is beyond loopback
            without a token or TLS, or it cannot be listened at.
        EnvironmentProblem: what the server needs is not installed.
    """
    from ullage.ground.address import Address, open_certificate, parse_address, read_token
    from ullage.operate.doors.asgi_server import check_installed, listen, make_server

    address = parse_address(options.listen or "")
    if (options.certificate is None) != (options.key is None):
        raise SpecError("certificate and key go together; give both, or neither")
    if not address.is_loopback and options.token_file is None and options.certificate is None:
        raise SpecError(
            f"--listen {address} can be reached from other machines; add --token-file, or "
            "--certificate and --key, or listen at 127.0.0.1"
        )
    token = None if options.token_file is None else read_token(options.token_file)
    tls = None
    if options.certificate is not None and options.key is not None:
        tls = open_certificate(options.certificate, options.key)
    check_installed("--listen", "watch", _NEEDED)
    from ullage.operate.watch.exporter.app import ExporterApp
    from ullage.operate.watch.exporter.exposition import Exposition, oldest_s

    exposition = Exposition(with_names=options.names)
    app = ExporterApp(exposition, token, address.is_loopback, oldest_s(options.interval))
    listener = listen(address, "give --listen another address or port")
    place = Address(address.host, listener.getsockname()[1])
    server = make_server(app, _CONNECTIONS, grace_s=1, tls=tls)
    scheme = "http" if tls is None else "https"
    return Exporter(server, listener, exposition, f"{scheme}://{place}/metrics")
