"""A model by whatever the user has: a file, a name, the hub's cache, the hub."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ullage.facts.families.find import find_config
from ullage.ground.errors import SpecError

TINY = {"model_type": "llama", "hidden_size": 64}


class Hub(BaseHTTPRequestHandler):
    """Answers as the hub does: one repository is there, one needs a login, one is broken."""

    def do_GET(self) -> None:
        """One file of a repository."""
        bodies = {
            "/org/tiny/resolve/main/config.json": (200, json.dumps(TINY)),
            "/org/closed/resolve/main/config.json": (401, ""),
            "/org/list/resolve/main/config.json": (200, "[1]"),
        }
        code, body = bodies.get(self.path, (404, ""))
        self.send_response(code)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A hub on this machine, and an empty cache."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    for name in ("HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    yield
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_file_and_its_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    for path in (tmp_path, tmp_path / "config.json"):
        source = find_config(str(path))
        assert source.config.number("hidden_size") == 64
        assert not source.source


def test_a_number_of_parameters() -> None:
    assert find_config("7B").config.number("num_parameters") == 7 * 10**9
    assert find_config("1.5m").config.number("num_parameters") == 1_500_000


@pytest.mark.usefixtures("hub")
def test_a_repository_is_fetched() -> None:
    source = find_config("org/tiny")
    assert source.source == "org/tiny"
    assert source.config.number("hidden_size") == 64


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("org/closed", "needs a login: set HF_TOKEN"),
        ("org/absent", "the hub answered 404"),
        ("org/list", "not a JSON object"),
        ("nonsense", "neither a file nor a built-in model"),
    ],
)
def test_what_cannot_be_had_is_told(name: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        find_config(name)


@pytest.mark.usefixtures("hub")
def test_the_local_cache_comes_before_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "hub" / "models--org--kept" / "snapshots" / "abc"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(TINY | {"hidden_size": 128}))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert find_config("org/kept").config.number("hidden_size") == 128
    with pytest.raises(SpecError, match="HF_HUB_OFFLINE is set"):
        find_config("org/tiny")


def test_a_hub_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with pytest.raises(SpecError, match="cannot be reached"):
        find_config("org/tiny")
