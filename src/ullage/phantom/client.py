"""Replays requests against a server that runs on the phantom.

    with start(program, environment) as child:
        replay(service, child, run_dir)

What is noted of each request, record/requests/requests.py says; a failure ends the replay.
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

from ullage.errors import EnvironmentProblem
from ullage.phantom.http_requests import PORT, Endpoint, make_body
from ullage.phantom.launch import Child
from ullage.record.requests.requests import Noted, Request, in_parts, note
from ullage.record.session.levels import find_marks, read_levels

_POLL_S = 0.1
_LOOK_S = 10.0
# What a server still does after its answer: it is over when nothing changed for so many looks.
_SETTLED_LOOKS, _SETTLED_S, _MAX_LOOKS = 3, 0.01, 300
_SHOWN_CHARS = 300
_OK, _BAD = 200, 400


@dataclass(frozen=True, slots=True)
class Service:
    """A server, and what is sent to it.

    Attributes:
        endpoint: where requests go.
        requests: what is sent.
        directory: that paths in them begin at.
        users: how many requests run at once.
        ready: the path that answers with 200 when the server is ready; None: when its port is open.
        ready_timeout_s: how long that may take.
        timeout_s: how long an answer may take.
        fields: what is sent with every request, unless it has its own.
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
    """A port of this machine that nothing listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def check_port(endpoint: Endpoint) -> None:
    """Raises EnvironmentProblem where something listens on the port already."""
    try:
        socket.create_connection((endpoint.host, endpoint.port), _POLL_S).close()
    except OSError:
        return
    raise EnvironmentProblem(
        f"port {endpoint.port} of {endpoint.host} is taken: something else answers there; end it, "
        f"or write {PORT} in the url and the command for a port that is free"
    )


def replay(service: Service, child: Child, run_dir: Path) -> None:
    """Waits until the server is ready, and sends all requests; why it did not come to that is
    noted.
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
    """Why the server is not; empty when it is."""
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
    """Requests that are sent by several users, all of whom are waited for."""

    def __init__(self, service: Service, child: Child, run_dir: Path) -> None:
        self._service = service
        self._child = child
        self._run_dir = run_dir
        self._lock = threading.Lock()
        self._left: list[Request] = []
        self._noted: list[Noted] = []

    def send(self, requests: Sequence[Request]) -> list[Noted]:
        """What is noted of each, in the order of the answers."""
        self._left = list(reversed(requests))
        threads = [
            threading.Thread(target=self._use, daemon=True)
            for _ in range(min(self._service.users, len(requests)))
        ]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):  # signals are heard in between
            threads[0].join(_POLL_S)
            threads = [thread for thread in threads if thread.is_alive()] or threads
        # The last one ends when the server has let go of what it held for it.
        *noted, last = self._noted
        return [*noted, replace(last, end=self._settle())]

    def _use(self) -> None:
        """One user: sends what is left, one after the other, until one fails."""
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
        """What went wrong, and whether nothing did."""
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
            self._child.is_ended_within(_POLL_S * 10)  # how it ended says more
            return f"the server closed the connection ({type(error).__name__}: {error})", False
        finally:
            connection.close()
        excerpt = " ".join(text.split())[:_SHOWN_CHARS]
        return f"HTTP {response.status}: {excerpt}", response.status < _BAD

    def _look(self) -> tuple[dict[int, int], int]:
        """The position of each process, and how often there was no room."""
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
