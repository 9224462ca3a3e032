"""Who gets the page, and who does not."""

from __future__ import annotations

import http.client
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from ullage.ground.address import parse_address
from ullage.ground.errors import SpecError
from ullage.operate.doors import asgi_server, protocol
from ullage.operate.watch.exporter.exposition import Page
from ullage.operate.watch.sample import Sample
from ullage.verbs.watch.listen_function import Exporter, open_exporter
from ullage.verbs.watch.options import WatchOptions

TOKEN = "0123456789abcdef0123"
Start = Callable[..., Exporter]


@pytest.fixture
def start(full_sample: Sample) -> Iterator[Start]:
    """Starts an exporter at a free port; `is_empty`: without a sample."""
    with ExitStack() as stack:

        def open_one(
            address: str = "0", *, is_empty: bool = False, **files: Path | None
        ) -> Exporter:
            options = WatchOptions(listen=address, **files)  # type: ignore[arg-type]
            exporter = stack.enter_context(open_exporter(options))
            if not is_empty:
                exporter.exposition.publish(full_sample)
            return exporter

        yield open_one


def port_of(exporter: Exporter) -> int:
    """The port that it has."""
    return int(exporter.url.removesuffix("/metrics").rpartition(":")[2])


def ask(
    exporter: Exporter, path: str = "/metrics", method: str = "GET", **headers: str
) -> tuple[int, str, str]:
    """Status, type and text of an answer."""
    with closing(http.client.HTTPConnection("127.0.0.1", port_of(exporter), timeout=20)) as http_:
        http_.request(method, path, headers=headers)
        answer = http_.getresponse()
        return answer.status, answer.headers.get("Content-Type", ""), answer.read().decode()


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    """A file with a token."""
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return path


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for localhost that nobody signed, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: no certificate can be made")
    folder = tmp_path_factory.mktemp("tls")
    done = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-keyout", folder / "key.pem", "-out", folder / "cert.pem", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
        capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder / "cert.pem", folder / "key.pem"


def test_the_last_sample_is_served_in_the_format_that_is_asked_for(start: Start) -> None:
    exporter = start()
    status, kind, text = ask(exporter)
    assert (status, kind.partition(";")[0]) == (200, "text/plain")
    assert "DCGM_FI_DEV_FB_USED{" in text
    status, kind, text = ask(exporter, Accept="application/openmetrics-text; version=1.0.0")
    assert (status, kind.partition(";")[0]) == (200, "application/openmetrics-text")
    assert text.endswith("# EOF\n")


def test_nothing_but_two_paths_is_answered(start: Start) -> None:
    exporter = start()
    assert ask(exporter, "/-/healthy")[0] == 200
    assert ask(exporter, "/metrics?x=1")[0] == 200
    for path in ("/", "/metrics/", "/../metrics", "/-/ready"):
        assert ask(exporter, path)[0] == 404
    for method in ("POST", "PUT", "DELETE", "HEAD", "TRACE"):
        assert ask(exporter, method=method)[0] == 405


def test_before_the_first_sample(start: Start) -> None:
    exporter = start(is_empty=True)
    status, _, text = ask(exporter)
    assert status == 503 and "there is no sample yet" in text


def test_without_samples_it_is_not_healthy(
    start: Start, full_sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter = start()
    now_s = exporter.exposition._clock()
    monkeypatch.setattr(exporter.exposition, "_clock", lambda: now_s + 40)
    assert ask(exporter, "/-/healthy")[0] == 503
    exporter.exposition.publish(full_sample)
    assert ask(exporter, "/-/healthy")[0] == 200


@pytest.mark.parametrize(
    "word", [None, "Bearer", "Bearer x", f"Basic {TOKEN}", f"Bearer {TOKEN}0", TOKEN, "Bearer é"]
)
def test_without_the_token_nothing_is_told(
    start: Start, token_file: Path, word: str | None
) -> None:
    exporter = start("0.0.0.0:0", token_file=token_file)
    headers = {} if word is None else {"Authorization": word}
    for path in ("/metrics", "/other"):
        status, _, text = ask(exporter, path, **headers)
        assert status == 401 and "DCGM" not in text
    assert ask(exporter, "/-/healthy", **headers)[2] == "healthy\n"


def test_with_the_token(start: Start, token_file: Path) -> None:
    exporter = start("0.0.0.0:0", token_file=token_file)
    assert ask(exporter, Authorization=f"Bearer {TOKEN}", Host="gpu-1:9400")[0] == 200
    exporter = start(token_file=token_file)  # on loopback it is asked for too
    assert ask(exporter)[0] == 401


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:9400", 200), ("127.0.0.1", 200), ("[::1]:9400", 200), ("[::1]", 200),
        ("evil.example", 403), ("evil.example:9400", 403), ("127.0.0.1.evil.example", 403),
        ("", 403),
    ],
)  # fmt: skip
def test_a_page_of_another_name_is_refused(start: Start, host: str, status: int) -> None:
    assert ask(start(), Host=host)[0] == status


def test_tls(start: Start, certificate: tuple[Path, Path]) -> None:
    exporter = start("0.0.0.0:0", certificate=certificate[0], key=certificate[1])
    assert exporter.url.startswith("https://0.0.0.0:")
    context = ssl.create_default_context(cafile=str(certificate[0]))
    place = "localhost", port_of(exporter)
    with closing(http.client.HTTPSConnection(*place, context=context, timeout=20)) as connection:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        assert answer.status == 200 and b"DCGM_FI_DEV_FB_USED" in answer.read()
    with pytest.raises((http.client.HTTPException, OSError)):
        ask(exporter)  # without TLS


@pytest.fixture
def slow_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads have a minute: the clients of a test are the sooner ones, however busy the machine."""
    monkeypatch.setattr(protocol, "_HEAD_S", 60.0)


def get_health(exporter: Exporter, certificate: Path) -> int:
    """The status of the liveness probe over TLS."""
    context = ssl.create_default_context(cafile=str(certificate))
    place = "127.0.0.1", port_of(exporter)
    with closing(http.client.HTTPSConnection(*place, context=context, timeout=30)) as http_:
        http_.request("GET", "/-/healthy")
        return http_.getresponse().status


@pytest.mark.usefixtures("slow_heads")
def test_the_probe_is_answered_while_slow_heads_fill_the_rest(start: Start) -> None:
    exporter = start()
    with ExitStack() as stack:
        slow = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port_of(exporter))))
            for _ in range(80)  # more than there may be
        ]
        for turn in range(3):
            for connection in slow:
                with suppress(OSError):  # closed to make room
                    connection.sendall(b"GET /metrics HTTP/1.1\r\n" if turn == 0 else b"a: b\r\n")
            assert ask(exporter, "/-/healthy")[0] == 200
            assert ask(exporter)[0] == 200


@pytest.mark.usefixtures("slow_heads")
def test_the_probe_is_answered_while_handshakes_that_do_not_end_fill_the_rest(
    start: Start, certificate: tuple[Path, Path]
) -> None:
    exporter = start(certificate=certificate[0], key=certificate[1])
    with ExitStack() as stack:
        for _ in range(80):
            connection = socket.create_connection(("127.0.0.1", port_of(exporter)))
            stack.enter_context(connection).sendall(b"\x16")
        assert get_health(exporter, certificate[0]) == 200


@pytest.mark.parametrize("has_tls", [False, True])
def test_a_head_has_a_deadline(
    start: Start, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, *, has_tls: bool
) -> None:
    """Also where some of it comes again and again, and where a request was answered before."""
    monkeypatch.setattr(protocol, "_HEAD_S", 0.3)
    files = {"certificate": certificate[0], "key": certificate[1]} if has_tls else {}
    exporter = start(**files)
    with socket.create_connection(("127.0.0.1", port_of(exporter)), timeout=20) as slow:
        if not has_tls:
            slow.sendall(b"GET /-/healthy HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert b" 200 " in slow.recv(4096)
            slow.sendall(b"GET / HTTP/1.1\r\n")
        slow.settimeout(0.02)
        begin_s = time.monotonic()
        with pytest.raises((ConnectionError, EOFError)):
            while time.monotonic() < begin_s + 20:
                slow.sendall(b"\x16" if has_tls else b"a: b\r\n")
                with suppress(TimeoutError):
                    if not slow.recv(1):
                        raise EOFError


def test_a_client_that_takes_nothing_is_cut_off(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asgi_server, "_IDLE_S", 0.1)
    exporter = start()
    page = Page("text/plain", b"x" * 2**24)
    monkeypatch.setattr(exporter.exposition, "page", lambda accept: page)
    for word in ("close", "keep-alive"):
        with socket.create_connection(("127.0.0.1", port_of(exporter)), timeout=20) as idle:
            head = f"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: {word}\r\n\r\n"
            idle.sendall(head.encode())
            until(lambda: not exporter._server.server_state.connections, is_there=False)
            until(lambda: not exporter._server.server_state.connections)


def until(is_so: Callable[[], bool], *, is_there: bool = True) -> None:
    """Waits until something is so, or is not, a minute at most."""
    end_s = time.monotonic() + 60
    while is_so() != is_there:
        assert time.monotonic() < end_s
        time.sleep(0.005)


@pytest.mark.parametrize(
    "headers",
    [
        {"Forwarded": "for=1.2.3.4"}, {"X-Forwarded-For": "1.2.3.4"}, {"X-Forwarded-Host": "a"},
        {"X-Real-IP": "1.2.3.4"}, {"Via": "1.1 proxy"}, {"Origin": "http://evil.example"},
        {"Origin": "null"}, {"Origin": "http://localhost:3000"},
    ],
)  # fmt: skip
def test_what_a_proxy_or_another_page_sends_is_refused_without_a_token(
    start: Start, token_file: Path, headers: dict[str, str]
) -> None:
    assert ask(start(), Host="localhost:9400", **headers)[0] == 403
    exporter = start(token_file=token_file)
    assert ask(exporter, Authorization=f"Bearer {TOKEN}", **headers)[0] == 200


def test_a_port_that_is_taken(start: Start) -> None:
    port = port_of(start())
    with pytest.raises(
        SpecError, match=rf"127.0.0.1:{port} cannot be listened on \(Address already in use"
    ):
        start(str(port))


def test_the_port_is_free_afterwards() -> None:
    with open_exporter(WatchOptions(listen="0")) as exporter:
        port = port_of(exporter)
    with open_exporter(WatchOptions(listen=str(port))) as exporter:
        assert port_of(exporter) == port


@pytest.mark.parametrize(
    ("text", "is_loopback"),
    [
        ("9400", True), ("127.0.0.1:9400", True), ("127.1.2.3:1", True), ("[::1]:9400", True),
        ("localhost:9400", True), ("0.0.0.0:9400", False), ("[::]:9400", False),
        ("10.0.0.1:9400", False), ("gpu-1:9400", False), ("localhost.example:1", False),
    ],
)  # fmt: skip
def test_addresses(text: str, is_loopback: bool) -> None:  # noqa: FBT001
    address = parse_address(text)
    assert address.is_loopback == is_loopback
    assert str(address).endswith(text)


@pytest.mark.parametrize("text", ["", ":9400", "host", "65536", "a b:1", "::1:9400", "1:2:3"])
def test_no_addresses(text: str) -> None:
    with pytest.raises(SpecError, match=r"give \[HOST:\]PORT"):
        parse_address(text)


def test_options_that_do_not_go_together(
    tmp_path: Path, token_file: Path, certificate: tuple[Path, Path]
) -> None:
    cert, key = certificate
    short = tmp_path / "short"
    short.write_text("abc\n")
    for options, message in (
        (WatchOptions(listen="0.0.0.0:0"), "can be reached from other machines; add --token-file"),
        (WatchOptions(listen="0", certificate=cert), "certificate and key go together"),
        (WatchOptions(listen="0", key=key), "certificate and key go together"),
        (
            WatchOptions(listen="0", token_file=tmp_path / "none"),
            "none' cannot be read: No such file",
        ),
        (WatchOptions(listen="0", token_file=short), "has no token: expected one line of 16"),
        (WatchOptions(listen="0", certificate=key, key=cert), "cannot be used"),
        (WatchOptions(listen="0", certificate=cert, key=token_file), "cannot be used"),
        (
            WatchOptions(listen="no.such.host.invalid:0", token_file=token_file),
            "invalid:0 cannot be listened on",
        ),
    ):
        with pytest.raises(SpecError, match=message.replace("(", r"\(")):
            open_exporter(options)
