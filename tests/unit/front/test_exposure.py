"""Who reaches the front: not whom a proxy or a page sends where no key is asked for, and everybody
beside connections that never become a request.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.unit.front.conftest import RunFront

pytest.importorskip("httptools", reason="needs the extra ullage[front]")

import httpx
from tests.unit.front.sockets import Setup, key, until

from ullage.operate.doors import protocol
from ullage.operate.front.proxy.app import make_front
from ullage.operate.front.settings import load_front

SETTINGS = """
[front]
{more}
[front.engine.a]
url = "http://127.0.0.1:9"
models = "m"
cache = "1GiB"
token_bytes = 1
[front.tenant.me]
"""
STRANGERS = [
    {"forwarded": "for=192.0.2.1"},
    {"x-forwarded-for": "192.0.2.1"},
    {"x-forwarded-proto": "https"},
    {"x-real-ip": "192.0.2.1"},
    {"via": "1.1 proxy"},
    {"origin": "http://evil.example"},
    {"origin": "null"},
    {"origin": "http://localhost:3000"},
    {"host": "evil.example"},
    {"host": "127.0.0.1.evil.example:8080"},
    {"host": "192.0.2.1:8080"},
]
FRIENDS = [
    {"host": "localhost:8080"},
    {"host": "127.0.0.1"},
    {"host": "[::1]:8080"},
    {"host": "localhost:8080", "origin": "http://localhost:8080"},
]
MODELS, CHAT, DRAIN = "/v1/models", "/v1/chat/completions", "/admin/engines/a/drain"


def ask_all(
    folder: Path, requests: list[tuple[str, str, dict[str, str]]], more: str = ""
) -> list[httpx.Response]:
    """The answers of a front whose only tenant has no key."""
    (folder / "ullage.toml").write_text(SETTINGS.format(more=more))

    async def ask() -> list[httpx.Response]:
        async with make_front(load_front(folder)) as app:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
                return [
                    await http.request(
                        method, path, headers={"content-type": "application/json", **headers}
                    )
                    for method, path, headers in requests
                ]

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/metrics"), ("GET", "/admin"), ("POST", DRAIN), ("GET", MODELS), ("POST", CHAT)],
)
def test_without_a_key_only_this_machine_itself_is_answered(
    tmp_path: Path, method: str, path: str
) -> None:
    strangers = ask_all(tmp_path, [(method, path, headers) for headers in STRANGERS])
    assert [answer.status_code for answer in strangers] == [403] * len(STRANGERS)
    remedy = "key_file" if path in (MODELS, CHAT) else "admin_key_file"
    assert remedy in strangers[0].json()["error"]["message"]
    friends = ask_all(tmp_path, [(method, path, headers) for headers in FRIENDS])
    status = 400 if path == CHAT else 200  # the body is empty
    assert [answer.status_code for answer in friends] == [status] * len(FRIENDS)


def test_the_admins_key_is_enough_through_a_proxy(tmp_path: Path) -> None:
    (tmp_path / "admin").write_text("admin-" + "a" * 20)
    own = {"authorization": "Bearer admin-" + "a" * 20}
    paths = [("GET", "/metrics"), ("GET", "/admin"), ("POST", DRAIN)]
    for headers, status in ((own, 200), ({}, 401)):
        requests = [(*path, {**STRANGERS[1], "host": "a.example", **headers}) for path in paths]
        answers = ask_all(tmp_path, requests, 'admin_key_file = "admin"')
        assert [answer.status_code for answer in answers] == [status] * 3


def test_a_tenants_key_is_enough_through_a_proxy(run_front: RunFront) -> None:
    async def scenario(setup: Setup) -> None:
        headers = {**key("chat"), "host": "llm.example", **STRANGERS[1], **STRANGERS[5]}
        assert (await setup.client.get(MODELS, headers=headers)).status_code == 200

    run_front(scenario)


def test_half_heads_lock_nobody_out(
    run_front: RunFront, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five times as many as there may be; one line says so."""
    monkeypatch.setattr(protocol, "_HEAD_S", 60.0)

    async def scenario(setup: Setup) -> None:
        fields = {"prompt": "x" * 40, "max_tokens": 400, "stream": True}
        stream = asyncio.create_task(setup.ask(fields))
        await until(lambda: setup.num_running == 1)
        with ExitStack() as stack:
            for _ in range(100):
                half = socket.create_connection(("127.0.0.1", setup.port))
                stack.enter_context(half).sendall(b"GET / HTTP/1.1\r\nhost: a\r\n")
                await asyncio.sleep(0)
            await until(lambda: "too many connections" in caplog.text)
            for _ in range(3):
                async with httpx.AsyncClient(trust_env=False, timeout=60) as newcomer:
                    answer = await newcomer.get(f"http://127.0.0.1:{setup.port}/health")
                assert answer.status_code == 200
        answer = await stream  # what works is not ended
        assert answer.status_code == 200 and answer.text.endswith("data: [DONE]\n\n")

    with caplog.at_level(logging.WARNING, "ullage.operate.doors"):
        run_front(scenario, connections=20)
    assert caplog.text.count("too many connections") == 1
