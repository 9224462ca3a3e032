"""Deliveries: to a server, a file and a command of the test's own; late, failing and slow ones."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from ullage.ground.errors import SpecError
from ullage.operate.watch.alerts.event import Event
from ullage.operate.watch.alerts.rules_file import Receiver
from ullage.operate.watch.alerts.sinks.command import Command
from ullage.operate.watch.alerts.sinks.delivery import Delivery
from ullage.operate.watch.alerts.sinks.sink import SinkError
from ullage.operate.watch.alerts.sinks.webhook import Webhook, slack_document


@pytest.fixture
def event(scene: Any) -> Event:
    samples = [scene.sample(1000 + at, scene.gpu(temperature_c=85)) for at in range(40)]
    (only,) = [event for _, _, event in scene.events(samples, "temperature")]
    return only  # type: ignore[no-any-return]


class Server:
    """A web server on this machine that answers with the codes it is given, then with 200."""

    def __init__(self) -> None:
        self.codes: list[int] = []
        self.bodies: list[Any] = []
        self.delay_s = 0.0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.bodies.append(json.loads(body))
                time.sleep(outer.delay_s)
                code = outer.codes.pop(0) if outer.codes else 200
                self.send_response(code)
                self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/services/secret"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def stop(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


def hook(server: Server, pauses: list[float], **fields: Any) -> Webhook:
    return Webhook(server.url, sleep=pauses.append, **fields)


def test_an_event_is_posted_once(server: Server, event: Event) -> None:
    pauses: list[float] = []
    hook(server, pauses).send(event)
    assert server.bodies == [event.document]
    assert event.document["schema"] == "ullage.alert/1"
    assert pauses == []


def test_slack_has_its_own_form(server: Server, event: Event) -> None:
    hook(server, [], form="slack").send(event)
    (body,) = server.bodies
    assert body == slack_document(event)
    assert body["text"].startswith(":warning: node-1: ")
    assert "temperature: GPU 0: 85 °C" in body["text"]


def test_a_failure_that_may_pass_is_tried_again(server: Server, event: Event) -> None:
    server.codes, pauses = [503, 429], []
    hook(server, pauses).send(event)
    assert len(server.bodies) == 3
    assert pauses == [1.0, 2.0]


def test_attempts_are_bounded_and_no_message_has_the_secret(server: Server, event: Event) -> None:
    server.codes = [500] * 9
    with pytest.raises(SinkError, match=r"127\.0\.0\.1: the server answered 500") as raised:
        hook(server, []).send(event)
    assert len(server.bodies) == 4
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("code", [302, 307, 404])
def test_what_will_not_pass_is_not_tried_again(server: Server, event: Event, code: int) -> None:
    server.codes = [code]
    with pytest.raises(SinkError, match=f"answered {code}"):
        hook(server, []).send(event)
    assert len(server.bodies) == 1


def test_a_server_that_does_not_answer(server: Server, event: Event) -> None:
    server.delay_s = 0.5
    with pytest.raises(SinkError, match="timed out"):
        hook(server, [], timeout_s=0.05, pauses_s=(0.0,)).send(event)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_an_attempt_ends_though_a_byte_comes_again_and_again(event: Event, scheme: str) -> None:
    """Also in the handshake of TLS, of which the server sends the head of a record without end."""
    first = b"HTTP/1.1 200 OK\r\na: " if scheme == "http" else b"\x16\x03\x03\x40\x00"
    stop = threading.Event()

    def trickle(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.sendall(first)
            while not stop.wait(0.05):
                connection.sendall(b"b")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=trickle, args=(listener,))
        thread.start()
        try:
            url = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}/secret"
            with pytest.raises(SinkError, match="timed out"):
                Webhook(url, timeout_s=0.3, pauses_s=()).send(event)
        finally:
            stop.set()
            thread.join()


def test_a_server_that_is_not_there(event: Event) -> None:
    with pytest.raises(SinkError, match="refused"):
        Webhook("http://127.0.0.1:9/secret", pauses_s=()).send(event)


def test_a_command_has_the_text_on_stdin(tmp_path: Path, event: Event) -> None:
    target = tmp_path / "mail"
    code = f"import sys; open({str(target)!r}, 'w').write(sys.stdin.read())"
    Command((sys.executable, "-c", code)).send(event)
    text = target.read_text(encoding="utf-8")
    assert text.startswith(event.line())
    assert event.incident in text


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import sys; sys.exit('no mail')", "ended with 1: no mail"),
        ("import time; time.sleep(60)", "took more"),
    ],
)
def test_a_command_that_fails(event: Event, code: str, message: str) -> None:
    with pytest.raises(SinkError, match=message):
        Command((sys.executable, "-c", code), timeout_s=60.0 if "exit" in code else 0.1).send(event)


def test_a_command_that_is_not_there(event: Event) -> None:
    with pytest.raises(SinkError, match="No such file"):
        Command(("no-such-mail",)).send(event)


class Slow:
    """Waits until it may go on."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.events: list[Event] = []

    def send(self, event: Event) -> None:
        self.may.wait(30)
        self.events.append(event)


class Broken:
    """Has a defect."""

    def send(self, event: Event) -> None:
        raise ZeroDivisionError


def test_a_slow_receiver_holds_nobody_up(event: Event) -> None:
    slow, quick, problems = Slow(), Slow(), list[str]()
    quick.may.set()
    with Delivery({"slow": slow, "quick": quick}, problems.append, end_s=30.0) as delivery:
        for _ in range(400):
            delivery.hand(event, "slow")
        delivery.hand(event, "quick")
        while not quick.events:
            time.sleep(0.01)
        assert not slow.events
        assert len(problems) >= 400 - 256 - 1
        assert "one more was dropped" in problems[0]
        slow.may.set()
    assert len(slow.events) + len(problems) == 400


def test_the_end_waits_only_so_long(event: Event) -> None:
    slow, problems = Slow(), list[str]()
    with Delivery({"slow": slow}, problems.append, end_s=0.05) as delivery:
        for _ in range(3):
            delivery.hand(event, "slow")
    slow.may.set()
    assert any("were not delivered in 0.05 s" in problem for problem in problems)


def test_a_defect_is_told_and_ends_nothing(event: Event) -> None:
    problems = list[str]()
    with Delivery({"broken": Broken()}, problems.append) as delivery:
        delivery.hand(event, "broken")
        delivery.hand(event, "broken")
    assert problems == ["broken: ZeroDivisionError while sending"] * 2


def test_receivers_become_sinks() -> None:
    receivers = [
        Receiver("a", url_env="HOOK", form="slack"),
        Receiver("b", command=("mail",)),
    ]
    sinks = [receiver.open({"HOOK": "https://example.org/x"}) for receiver in receivers]
    assert sinks == [Webhook("https://example.org/x", "slack"), Command(("mail",))]


@pytest.mark.parametrize("value", [None, "secret"])
def test_a_variable_without_an_address(value: str | None) -> None:
    environment = {} if value is None else {"HOOK": value}
    with pytest.raises(SpecError, match=r"'HOOK' of watch\.notify\.a") as raised:
        Receiver("a", url_env="HOOK").open(environment)
    assert "secret" not in str(raised.value)
