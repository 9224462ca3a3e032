"""Who may ask: the page itself, with the token, and nobody else."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from tests.rows import each

Ask = Callable[..., Any]
PORT, TOKEN = 8123, "t" * 32  # as in conftest.py
HOST = f"127.0.0.1:{PORT}"
QUERY = {"model": "llama-3.2-1b", "gpu": "h100-80gb", "recipe": {"length": 128}}


def test_the_page_itself_is_answered(ask: Ask) -> None:
    assert ask("GET", "/").status == 200
    assert ask("POST", "/estimate", QUERY).json["document"]["verdict"] == "fits"


STRANGERS: list[dict[str, str | None]] = [
    {"cookie": None},
    {"cookie": f"ullage-{PORT}=wrong"},
    {"cookie": f"ullage-{PORT}={TOKEN}x"},
    {"cookie": f"ullage-{PORT}={TOKEN[:-1]}"},
    {"cookie": f"ullage-{PORT + 1}={TOKEN}"},
    {"cookie": "\x00=;;"},
    {"host": f"evil.example:{PORT}"},  # DNS rebinding
    {"host": f"127.0.0.1:{PORT}.evil.example"},
    {"host": None},
    {"origin": "http://evil.example"},
    {"origin": "null"},
    {"origin": f"http://127.0.0.1:{PORT + 1}"},
    {"origin": f"https://{HOST}"},
    {"x-forwarded-for": "192.0.2.1"},
    {"via": "1.1 proxy"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},  # another port of this machine
]


@each(
    ("headers", "path"),
    product(STRANGERS, ["/", "/assets/page.js", "/catalogue", "/estimate", "/check"]),
)
def test_others_are_refused(ask: Ask, headers: dict[str, str | None], path: str) -> None:
    method = "POST" if path == "/estimate" else "GET"
    assert ask(method, path, QUERY, headers=headers).status == 403


@pytest.mark.parametrize(
    "path", ["/estimate", "/advice", "/check", "/check/cancel", "/snapshots", "/pages"]
)
def test_a_change_needs_to_say_where_it_comes_from(ask: Ask, path: str) -> None:
    assert ask("POST", path, QUERY, headers={"origin": None}).status == 403


@pytest.mark.parametrize(
    "path",
    [
        "/nothing", "/assets/", "/assets/app.py", "/assets/../app.py", "/assets/%2e%2e/app.py",
        "/assets/..%2fapp.py", "//etc/passwd", "/pages/../../etc/passwd", "/pages/none",
        "/estimate/",
    ],
)  # fmt: skip
def test_other_paths_are_not_there(ask: Ask, path: str) -> None:
    assert ask("GET", path).status == 404


@pytest.mark.parametrize("method", ["PUT", "DELETE", "HEAD", "OPTIONS", "TRACE", "PATCH"])
def test_other_methods_are_refused(ask: Ask, method: str) -> None:
    assert ask(method, "/").status == 405


def test_a_page_that_is_asked_for_is_not_a_change(ask: Ask) -> None:
    assert ask("GET", "/estimate").status == 405


def test_the_token_becomes_a_cookie_that_scripts_cannot_read(ask: Ask) -> None:
    answer = ask("GET", f"/enter/{TOKEN}", headers={"cookie": None})
    assert answer.status == 200
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"ullage-{PORT}={TOKEN}")
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie
    assert TOKEN.encode() not in answer.body


@pytest.mark.parametrize("token", ["", "x", TOKEN[:-1], TOKEN + "/", "é" * 32])
def test_a_wrong_token_does_not_enter(ask: Ask, token: str) -> None:
    answer = ask("GET", f"/enter/{token}", headers={"cookie": None})
    assert answer.status == 403 and "set-cookie" not in answer.headers


def test_the_token_does_not_enter_under_another_name(ask: Ask) -> None:
    headers = {"cookie": None, "host": f"evil.example:{PORT}"}
    assert ask("GET", f"/enter/{TOKEN}", headers=headers).status == 403


@pytest.mark.parametrize("path", ["/", "/catalogue", "/nothing", "/enter/wrong"])
def test_every_answer_has_the_headers(ask: Ask, path: str) -> None:
    headers = ask("GET", path).headers
    assert headers["content-security-policy"].startswith("default-src 'self';")
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-store"
    assert "access-control-allow-origin" not in headers


def test_what_is_too_large_is_refused(ask: Ask) -> None:
    answer = ask("POST", "/estimate", b'{"model": "' + b"x" * 2**20 + b'"}')
    assert answer.status == 413 and "bytes" in answer.json["problem"]


@each(
    ("path", "body"),
    product(
        ["/estimate", "/advice", "/check", "/pages"],
        [b"", b"{", b"[1]", b"1", b'"x"', b"\xff", b"[" * 100_000],
    ),
)
def test_what_is_not_a_query_is_refused(ask: Ask, path: str, body: bytes) -> None:
    answer = ask("POST", path, body)
    assert answer.status == 400 and answer.json["problem"]
