"""Who gets the page, and who does not."""

from __future__ import annotations

import http.client
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from ullage.api.listen import Exporter, ListenOptions, open_exporter
from ullage.errors import SpecError
from ullage.watch.exporter import scrape_server
from ullage.watch.exporter.address import parse_address
from ullage.watch.sample import Sample

TOKEN = "0123456789abcdef0123"
Start = Callable[..., Exporter]


@pytest.fixture
def start(full_sample: Sample) -> Iterator[Start]:
    """Starts an exporter at a free port; `is_empty`: without a sample."""
    with ExitStack() as stack:

        def open_one(
            address: str = "0", *, is_empty: bool = False, **files: Path | None
        ) -> Exporter:
            options = ListenOptions(address, **files)  # type: ignore[arg-type]
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
        assert ask(exporter, method=method)[0] == 501


def test_before_the_first_sample(start: Start) -> None:
    exporter = start(is_empty=True)
    status, _, text = ask(exporter)
    assert (status, text) == (503, "there is no sample yet\n")


def test_without_samples_it_is_not_healthy(
    start: Start, full_sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    exporter = start()
    current = exporter.exposition._current
    now_s = current._clock()
    monkeypatch.setattr(current, "_clock", lambda: now_s + 40)
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


def test_a_client_that_says_nothing_holds_nobody_up(
    start: Start, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The server would wait for longer than the other client does, however busy the machine is.
    monkeypatch.setattr(scrape_server, "_TIMEOUT_S", 120.0)
    exporter = start(certificate=certificate[0], key=certificate[1])
    context = ssl.create_default_context(cafile=str(certificate[0]))
    with socket.create_connection(("127.0.0.1", port_of(exporter))):  # no handshake
        http_ = http.client.HTTPSConnection(
            "127.0.0.1", port_of(exporter), context=context, timeout=30
        )
        with closing(http_):
            http_.request("GET", "/-/healthy")
            assert http_.getresponse().status == 200


def test_connections_are_limited(start: Start) -> None:
    exporter = start()
    place = "127.0.0.1", port_of(exporter)
    before = set(threading.enumerate())  # other tests' connections may still be open
    with ExitStack() as stack:
        for _ in range(16):
            stack.enter_context(socket.create_connection(place))
        with pytest.raises((http.client.HTTPException, OSError)):
            ask(exporter)
        assert len(set(threading.enumerate()) - before) <= 16


def test_a_port_that_is_taken(start: Start) -> None:
    port = port_of(start())
    with pytest.raises(SpecError, match=rf"--listen 127.0.0.1:{port}: Address already in use"):
        start(str(port))


def test_the_port_is_free_afterwards() -> None:
    with open_exporter(ListenOptions("0")) as exporter:
        port = port_of(exporter)
    with open_exporter(ListenOptions(str(port))) as exporter:
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
        (ListenOptions("0.0.0.0:0"), "can be reached from other machines; give --token-file"),
        (ListenOptions(None, token_file), "--key and --names are of --listen"),
        (ListenOptions("0", certificate=cert), "--certificate and --key go together"),
        (ListenOptions("0", key=key), "--certificate and --key go together"),
        (ListenOptions("0", tmp_path / "none"), "none' cannot be read: No such file"),
        (ListenOptions("0", short), "has no token: expected one line of 16"),
        (ListenOptions("0", certificate=key, key=cert), "cannot be used"),
        (ListenOptions("0", certificate=cert, key=token_file), "cannot be used"),
        (ListenOptions("no.such.host.invalid:0", token_file), "--listen no.such.host.invalid:0"),
    ):
        with pytest.raises(SpecError, match=message.replace("(", r"\(")):
            open_exporter(options)
