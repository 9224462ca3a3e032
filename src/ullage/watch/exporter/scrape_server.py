"""Answers Prometheus: GET /metrics, and GET /-/healthy, which says nothing of the machine.

    with ScrapeServer(parse_address("9400"), exposition) as server:
        print(server.url)

Each connection has a thread of its own, ten seconds and one answer; at most 16 are open. Without a
token, requests to the loopback address have to name it as their host: a web page of another name
that resolves to it, open in a browser on this machine, is refused.
"""

from __future__ import annotations

import hmac
import socket
import socketserver
import ssl
import sys
import threading
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Final, Self

from ullage.errors import SpecError
from ullage.watch.exporter.address import Address, parse_address
from ullage.watch.exporter.exposition import Exposition, Page

_TIMEOUT_S: Final = 10.0
_MAX_CONNECTIONS: Final = 16
_Request = socket.socket | tuple[bytes, socket.socket]
_TEXT: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Access:
    """What a scrape needs: `token` in its header, TLS by `tls`; None: neither."""

    token: bytes | None = None
    tls: ssl.SSLContext | None = None


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    server: ScrapeServer
    timeout = _TIMEOUT_S

    def version_string(self) -> str:
        """The header "Server", without Python's version."""
        return "ullage"

    def log_message(self, *_: object) -> None:
        """Nothing: a scrape every few seconds is no news."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/-/healthy":
            self._answer_health()
        elif not self._has_token():
            self._say(HTTPStatus.UNAUTHORIZED, "send the token: Authorization: Bearer TOKEN")
        elif not self._has_host():
            self._say(HTTPStatus.FORBIDDEN, "this server answers to 127.0.0.1 and localhost alone")
        elif path != "/metrics":
            self._say(HTTPStatus.NOT_FOUND, "there are /metrics and /-/healthy")
        else:
            page = self.server.exposition.page(self.headers.get("Accept", ""))
            if page is None:
                self._say(HTTPStatus.SERVICE_UNAVAILABLE, "there is no sample yet")
            else:
                self._answer(HTTPStatus.OK, page)

    def _answer_health(self) -> None:
        age_s = self.server.exposition.age_s
        if age_s <= self.server.max_age_s:
            self._say(HTTPStatus.OK, "healthy")
        else:
            self._say(HTTPStatus.SERVICE_UNAVAILABLE, f"no sample for {age_s:.0f} s")

    def _has_token(self) -> bool:
        token = self.server.access.token
        if token is None:
            return True
        kind, _, word = self.headers.get("Authorization", "").partition(" ")
        sent = word.strip().encode("utf-8", "surrogateescape")
        return kind.lower() == "bearer" and hmac.compare_digest(sent, token)

    def _has_host(self) -> bool:
        if self.server.access.token is not None or not self.server.address.is_loopback:
            return True
        name = self.headers.get("Host", "")
        host = name if name.endswith("]") else name.rpartition(":")[0] or name
        try:
            return parse_address(f"{host}:0").is_loopback
        except SpecError:
            return False

    def _say(self, status: HTTPStatus, text: str) -> None:
        self._answer(status, Page(_TEXT, f"{text}\n".encode()))

    def _answer(self, status: HTTPStatus, page: Page) -> None:
        self.send_response(status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(page.body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        if status is HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        self.wfile.write(page.body)


class ScrapeServer(socketserver.ThreadingTCPServer):
    """Listens from its making on; answers between `with` and its end.

    Args:
        address: where.
        exposition: what is served.
        access: who may read; by default everybody who reaches the address.
        max_age_s: the age of the last sample up to which the exporter is healthy.

    Raises:
        SpecError: the address cannot be listened at, as when another program does.
    """

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def __init__(
        self,
        address: Address,
        exposition: Exposition,
        access: Access = Access(),
        *,
        max_age_s: float = 30.0,
    ) -> None:
        self.exposition, self.access, self.max_age_s = exposition, access, max_age_s
        self._places = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        try:
            family, *_, place = socket.getaddrinfo(
                address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            self.address_family = family
            super().__init__(place, _Handler)  # type: ignore[arg-type]
        except OSError as error:
            raise SpecError(
                f"--listen {address}: {error.strerror or error}; give another address or port"
            ) from None
        self.address = Address(address.host, self.socket.getsockname()[1])
        self._thread = threading.Thread(target=self._serve, name="ullage-exporter", daemon=True)

    @property
    def url(self) -> str:
        """Where the metrics are."""
        scheme = "http" if self.access.tls is None else "https"
        return f"{scheme}://{self.address}/metrics"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()

    def _serve(self) -> None:
        self.serve_forever(poll_interval=0.1)

    def process_request(self, request: _Request, client_address: object) -> None:
        """Starts a thread for a connection; one too many is closed."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: _Request, client_address: object) -> None:
        """Answers, in the connection's own thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def finish_request(self, request: _Request, client_address: object) -> None:
        """Answers, over TLS where that is asked for: nobody waits for another one's handshake."""
        if self.access.tls is None or not isinstance(request, socket.socket):
            super().finish_request(request, client_address)
            return
        request.settimeout(_TIMEOUT_S)  # the handler sets it only after the handshake
        with self.access.tls.wrap_socket(request, server_side=True) as secured:
            super().finish_request(secured, client_address)

    def handle_error(self, request: _Request, client_address: object) -> None:
        """Says what went wrong here; a connection that broke off is the other side's concern."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)
