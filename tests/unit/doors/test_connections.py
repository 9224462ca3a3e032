"""The descriptors of a server, and whose connection is closed where there are too many."""

from __future__ import annotations

import resource
import subprocess
import sys
from typing import Any, cast

import pytest

pytest.importorskip("httptools", reason="needs the extra ullage[watch]")

from ullage.operate.doors.asgi_server import raise_descriptors
from ullage.operate.doors.protocol import Connections, HttpProtocol


class Connection:
    """A connection of which is known whether it was closed."""

    def __init__(self, peer: str) -> None:
        self.peer, self.is_closed = peer, False

    @property
    def transport(self) -> Connection:
        """What can be closed."""
        return self

    def abort(self) -> None:
        """Closes it."""
        self.is_closed = True


def enter(limits: Connections, *peers: str) -> list[Connection]:
    """New connections."""
    connections = [Connection(peer) for peer in peers]
    for connection in connections:
        limits.enter(cast(HttpProtocol, connection))
    return connections


def closed(connections: list[Connection]) -> list[int]:
    """Which of them are closed."""
    return [at for at, each in enumerate(connections) if each.is_closed]


def test_one_too_many_takes_the_place_of_the_one_that_waits_longest() -> None:
    limits = Connections(8)
    connections = enter(limits, *"abcdefgh")
    del limits.waiting[cast(Any, connections[0])]  # it has a request
    enter(limits, "i")
    assert closed(connections) == [1]


def test_an_address_has_three_quarters_at_most() -> None:
    limits = Connections(8)
    connections = enter(limits, "a", *"bbbbbb", "b")
    assert closed(connections) == [1]
    limits.leave(cast(Any, connections[1]))
    assert closed(enter(limits, "c")) == []
    assert closed(connections) == [1]


def test_where_all_work_the_newcomer_is_closed() -> None:
    limits = Connections(4)
    working = enter(limits, *"abcd")
    limits.waiting.clear()
    assert closed(enter(limits, "e")) == [0]
    assert closed(working) == []


def test_half_of_the_descriptors_are_for_engines() -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (256, 1024))\n"
        "from ullage.operate.doors.asgi_server import raise_descriptors\n"
        "print(raise_descriptors(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["448", "1024"]


def test_more_descriptors_than_connections_are_of_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (2**20, 2**20))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: None)
    assert raise_descriptors() == 16 * 1024
