"""Sends requests to a server that runs on the phantom.

    with start(program, environment) as child:
        replay(service, child, run_dir)

A note is written for each request (players/inside/requests/requests.py). A failure ends the replay.
"""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ullage.ground.errors import EnvironmentProblem
from ullage.players.inside.process.levels import find_marks, read_levels
from ullage.players.inside.requests.requests import Noted, Request, in_parts, note
from ullage.players.phantom.http_requests import PORT, Endpoint, make_body
from ullage.players.phantom.launch import Child

_POLL_S = 0.1
_LOOK_S = 10.0
# A server may work on after its answer. It is idle when its positions are equal in so many reads.
_SETTLED_LOOKS, _SETTLED_S, _MAX_LOOKS = 3, 0.01, 300
_SHOWN_CHARS = 300
_OK, _BAD = 200, 400


@dataclass(frozen=True, slots=True)
class Service:
    """A server, and the requests for it.

    Attributes:
        endpoint: the address of the requests.
        requests: the requests to send.
        directory: the base of relative paths in the requests.
        users: the number of concurrent requests.
        ready: the path that answers with 200 once the server is ready; None: the server is ready
            once its port is open.
        ready_timeout_s: the limit on the time until the server is ready.
        timeout_s: the limit on the time until an answer.
        fields: fields of every request that does not have its own.
    """

    endpoint: Endpoint
    requests: Sequence[Request]
    directory: Path
    users: int = 1
    ready: str | None = None
    ready_timeout_s: int = 300
    timeout_s: int = 300
    fields: Mapping[str, Any] = field(default_factory=dict)


def find_free_port() -> int:
    """Finds a port of this machine on which nothing listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def check_port(endpoint: Endpoint) -> None:
    """Raises EnvironmentProblem if something listens on the port already."""
    try:
        socket.create_connection((endpoint.host, endpoint.port), _POLL_S).close()
    except OSError:
        return
    raise EnvironmentProblem(
        f"port {endpoint.port} of {endpoint.host} is taken: something else answers there; end it, "
        f"or write {PORT} in the url and the command for a port that is free"
    )


def replay(service: Service, child: Child, run_dir: Path) -> None:
    """Waits until the server is ready, and sends all requests. If the server does not become ready,
    the note says why.
    """
    failure = _wait_until_ready(service, child)
    if failure:
        note(run_dir, Noted("", {}, {}, failure))
        return
    for part in in_parts(service.requests, service.users):
        noted = _Part(service, child, run_dir).send(part)
        for response in noted:
            note(run_dir, response)
        if any(response.failure for response in noted) or not child.is_running:
            return


def _wait_until_ready(service: Service, child: Child) -> str:
    """Why the server is not ready; empty if it is."""
    started_s, last = time.monotonic(), ""
    while child.is_running:
        last = _look_whether_ready(service)
        if not last:
            return ""
        if time.monotonic() - started_s > service.ready_timeout_s:
            return f"the server was not ready within {service.ready_timeout_s} s: {last}"
        time.sleep(_POLL_S)
    return "the server ended before it was ready"


def _look_whether_ready(service: Service) -> str:
    endpoint = service.endpoint
    try:
        if service.ready is None:
            socket.create_connection((endpoint.host, endpoint.port), _POLL_S).close()
            return ""
        connection = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=_LOOK_S)
        try:
            connection.request("GET", service.ready)
            status = connection.getresponse().status
        finally:
            connection.close()
    except (OSError, http.client.HTTPException) as error:
        return f"{type(error).__name__}: {error}"
    return "" if status == _OK else f"{service.ready} answers with {status}"


class _Part:
    """Requests that several concurrent users send; `send` waits for all of them."""

    def __init__(self, service: Service, child: Child, run_dir: Path) -> None:
        self._service = service
        self._child = child
        self._run_dir = run_dir
        self._lock = threading.Lock()
        self._left: list[Request] = []
        self._noted: list[Noted] = []

    def send(self, requests: Sequence[Request]) -> list[Noted]:
        """Sends the requests; returns their notes in the order of the answers."""
        self._left = list(reversed(requests))
        threads = [
            threading.Thread(target=self._use, daemon=True)
            for _ in range(min(self._service.users, len(requests)))
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):  # a short wait lets signals through
            threads[0].join(_POLL_S)
            threads = [thread for thread in threads if thread.is_alive()] or threads
        # The last request ends when the server has released its memory for it.
        *noted, last = self._noted
        return [*noted, replace(last, end=self._settle())]

    def _use(self) -> None:
        """Runs one user: sends the remaining requests one after the other, until one fails."""
        while True:
            with self._lock:
                if not self._left:
                    return
                request = self._left.pop()
            noted = self._send(request)
            with self._lock:
                self._noted.append(noted)
                if noted.failure:
                    self._left.clear()

    def _send(self, request: Request) -> Noted:
        begin, num_ooms = self._look()
        text, is_answered = self._post(request)
        end, num_ooms_after = self._look()
        if is_answered:
            return Noted(request.where, begin, end)
        is_oom = num_ooms_after > num_ooms or "out of memory" in text.lower()
        return Noted(request.where, begin, end, text, is_oom)

    def _post(self, request: Request) -> tuple[str, bool]:
        """Sends a request; returns the answer or error as text, and whether it succeeded."""
        service, endpoint = self._service, self._service.endpoint
        content, kind = make_body(request, service.fields, service.directory)
        connection = http.client.HTTPConnection(
            endpoint.host, endpoint.port, timeout=service.timeout_s
        )
        try:
            connection.request("POST", endpoint.path, content, {"Content-Type": kind})
            response = connection.getresponse()
            text = response.read().decode(errors="replace")
        except TimeoutError:
            return f"the server did not answer within {service.timeout_s} s", False
        except (OSError, http.client.HTTPException) as error:
            self._child.is_ended_within(_POLL_S * 10)  # its exit code tells more than this error
            return f"the server closed the connection ({type(error).__name__}: {error})", False
        finally:
            connection.close()
        excerpt = " ".join(text.split())[:_SHOWN_CHARS]
        return f"HTTP {response.status}: {excerpt}", response.status < _BAD

    def _look(self) -> tuple[dict[int, int], int]:
        """The position of each process, and the number of failed allocations."""
        levels = {pid: read_levels(mark) for pid, mark in find_marks(self._run_dir).items()}
        positions = {pid: level.position for pid, level in levels.items()}
        return positions, sum(level.num_ooms for level in levels.values())

    def _settle(self) -> dict[int, int]:
        positions, num_same = self._look()[0], 0
        for _ in range(_MAX_LOOKS):
            time.sleep(_SETTLED_S)
            now = self._look()[0]
            num_same = num_same + 1 if now == positions else 0
            positions = now
            if num_same == _SETTLED_LOOKS:
                break
        return positions
