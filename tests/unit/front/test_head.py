"""Attempts to smuggle, to reach other hosts, and to overwhelm: each gets a 4xx and nothing goes on
to an engine.
"""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.unit.front.conftest import RunFront

pytest.importorskip("httptools", reason="needs the extra ullage[front]")

from tests.unit.front.sockets import KEYS, Setup, until

KEY = KEYS["chat"].encode()
BODY = json.dumps({"model": "stub", "prompt": "x", "max_tokens": 1}).encode()
LENGTH = b"content-length: %d\r\n" % len(BODY)
OWN = b"host: 127.0.0.1\r\nauthorization: Bearer " + KEY + b"\r\ncontent-type: application/json\r\n"
LINE = b"POST /v1/completions HTTP/1.1\r\n"


def chunked(body: bytes) -> bytes:
    """A body in one chunk."""
    return b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)


SMUGGLED = b"0\r\n\r\nGET /admin HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
ATTEMPTS = {
    "length and chunks": LINE + OWN + LENGTH + b"transfer-encoding: chunked\r\n\r\n" + SMUGGLED,
    "two lengths": LINE + OWN + LENGTH + b"content-length: 3\r\n\r\n" + BODY,
    "a length that is no number": LINE + OWN + b"content-length: +5\r\n\r\n" + BODY,
    "a length with an underscore": LINE + OWN + LENGTH + b"content_length: 3\r\n\r\n" + BODY,
    "another encoding": LINE + OWN + b"transfer-encoding: gzip, chunked\r\n\r\n" + chunked(BODY),
    "an unknown encoding": LINE + OWN + b"transfer-encoding: xchunked\r\n\r\n" + chunked(BODY),
    "two encodings": LINE + OWN + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n"
    b"\r\n" + chunked(BODY),
    "a folded header": LINE + OWN + LENGTH + b"transfer-encoding:\r\n chunked\r\n\r\n" + SMUGGLED,
    "a space before the colon": LINE + OWN + b"content-length : 3\r\n\r\n" + BODY,
    "a bare line feed": LINE + OWN + b"x-a: b\ntransfer-encoding: gzip\n" + LENGTH + b"\r\n" + BODY,
    "a NUL in a header": LINE + OWN + b"x-a: b\0c\r\n" + LENGTH + b"\r\n" + BODY,
    "two hosts": LINE + OWN + b"host: 169.254.169.254\r\n" + LENGTH + b"\r\n" + BODY,
    "no host": LINE + OWN[17:] + LENGTH + b"\r\n" + BODY,
    "a host with a path": LINE + OWN.replace(b"host: 127.0.0.1", b"host: a/b@c") + LENGTH + b"\r\n"
    + BODY,
    "two keys": LINE + OWN + b"authorization: Bearer other\r\n" + LENGTH + b"\r\n" + BODY,
    "another address": b"POST http://169.254.169.254/v1/completions HTTP/1.1\r\n" + OWN + LENGTH
    + b"\r\n" + BODY,
    "a tunnel": b"CONNECT 169.254.169.254:80 HTTP/1.1\r\n" + OWN + b"\r\n",
    "a path upward": b"POST /v1/completions/../../admin HTTP/1.1\r\n"
    + OWN + LENGTH + b"\r\n" + BODY,
    "an escaped path": b"POST /v1%2fcompletions HTTP/1.1\r\n" + OWN + LENGTH + b"\r\n" + BODY,
    "an escaped letter": b"POST /v1/%63ompletions HTTP/1.1\r\n" + OWN + LENGTH + b"\r\n" + BODY,
    "two slashes": b"POST //evil.example/v1/completions HTTP/1.1\r\n"
    + OWN + LENGTH + b"\r\n" + BODY,
    "a query": b"POST /v1/completions?url=http://evil HTTP/1.1\r\n" + OWN + LENGTH + b"\r\n" + BODY,
    "an engine's own path": b"POST /v1/load_lora_adapter HTTP/1.1\r\n"
    + OWN + LENGTH + b"\r\n" + BODY,
    "another method": b"DELETE /v1/completions HTTP/1.1\r\n" + OWN + LENGTH + b"\r\n" + BODY,
    "a body with GET": b"GET /v1/completions HTTP/1.1\r\n" + OWN + LENGTH + b"\r\n" + BODY,
    "an upgrade": LINE + OWN + b"connection: upgrade\r\nupgrade: h2c\r\n" + LENGTH + b"\r\n" + BODY,
    "hop-by-hop": LINE + OWN + b"connection: authorization\r\n" + LENGTH + b"\r\n" + BODY,
    "another path": LINE + OWN + b"x-original-url: /admin\r\n" + LENGTH + b"\r\n" + BODY,
    "rewritten": LINE + OWN + b"x-rewrite-url: /admin\r\n" + LENGTH + b"\r\n" + BODY,
    "another method in a header": LINE + OWN + b"x-http-method-override: GET\r\n" + LENGTH + b"\r\n"
    + BODY,
    "for a proxy": LINE + OWN + b"proxy-authorization: Basic eDp4\r\n" + LENGTH + b"\r\n" + BODY,
    "a trailer": LINE + OWN + b"trailer: authorization\r\ntransfer-encoding: chunked\r\n\r\n"
    + chunked(BODY),
    "compressed": LINE + OWN + b"content-encoding: gzip\r\n" + LENGTH + b"\r\n" + BODY,
    "a form": LINE + OWN.replace(b"application/json", b"text/plain") + LENGTH + b"\r\n" + BODY,
    "large headers": LINE + OWN + b"x-a: " + b"b" * 20_000 + b"\r\n" + LENGTH + b"\r\n" + BODY,
    "an endless path": b"POST /" + b"a" * 200_000,
    "headers behind a body": LINE + OWN + b"transfer-encoding: chunked\r\n\r\n"
    + chunked(BODY)[:-2] + b"authorization: Bearer other\r\n\r\n",
    "an endless line behind a body": LINE + OWN + b"transfer-encoding: chunked\r\n\r\n"
    + chunked(BODY)[:-2] + b"x-a: " + b"b" * 200_000,
    "an endless chunk line": LINE + OWN + b"transfer-encoding: chunked\r\n\r\n1;"
    + b"a" * 200_000,
    "endless headers": LINE + OWN + b"x-a: " + b"b" * 200_000,
    "many headers": LINE + OWN + b"x-a: b\r\n" * 120 + LENGTH + b"\r\n" + BODY,
    "a large body": LINE + OWN + b"content-length: 99999999\r\n\r\n",
    "a length beyond 64 bits": LINE + OWN + b"content-length: 99999999999999999999999\r\n\r\n",
    "a large body in chunks": LINE + OWN + b"transfer-encoding: chunked\r\n\r\n"
    + (b"10000\r\n" + b"x" * 65536 + b"\r\n") * 20,
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "no key": LINE + OWN.replace(KEY, b"") + LENGTH + b"\r\n" + BODY,
    "another's word": LINE + OWN.replace(KEY, KEY[:-1]) + LENGTH + b"\r\n" + BODY,
    "another scheme": LINE + OWN.replace(b"Bearer", b"Basic") + LENGTH + b"\r\n" + BODY,
}  # fmt: skip


async def send(port: int, request: bytes) -> bytes:
    """What comes back until the connection is closed, or its first line."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        async with asyncio.timeout(30):
            return await reader.readline()
    finally:
        writer.close()


def test_each_attempt_gets_a_4xx_and_reaches_no_engine(run_front: RunFront) -> None:
    async def scenario(setup: Setup) -> None:
        (stub,) = setup.stubs
        lines = {name: await send(setup.port, text) for name, text in ATTEMPTS.items()}
        wrong = {name: line for name, line in lines.items() if not line.startswith(b"HTTP/1.1 4")}
        assert wrong == {}
        assert stub.engine.last_id == 0
        # The same request without any of that is answered.
        assert b" 200 " in await send(setup.port, LINE + OWN + LENGTH + b"\r\n" + BODY)

    run_front(scenario, more='max_body = "1MiB"')


def test_a_client_that_reads_once_it_has_sent_all_gets_its_answer(run_front: RunFront) -> None:
    """The answer to a body that is too large comes while the body does; were the connection closed
    at once, the system would throw it away.
    """
    large = LINE + OWN + b"content-length: 4000000\r\n\r\n" + b"x" * 4_000_000
    endless = LINE + OWN + b"x-a: " + b"b" * 4_000_000

    async def ask(port: int, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(30):
            for begin in range(0, len(request), 65536):
                writer.write(request[begin : begin + 65536])
                await writer.drain()
            answer = await reader.read()
        writer.close()
        return answer

    async def scenario(setup: Setup) -> None:
        answer = await ask(setup.port, large)
        assert answer.startswith(b"HTTP/1.1 413 ") and b'"code": 413' in answer
        assert (await ask(setup.port, endless)).startswith(b"HTTP/1.1 400 ")

    run_front(scenario, more='max_body = "1MiB"')


def test_a_body_that_breaks_off_leaves_nothing(run_front: RunFront) -> None:
    async def scenario(setup: Setup) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", setup.port)
        writer.write(LINE + OWN + b"content-length: 500\r\n\r\n" + BODY)
        await writer.drain()
        writer.close()
        await until(lambda: setup.app.board.outcomes["chat", "refused 400"] == 1)

    run_front(scenario)


CHAT = "/v1/chat/completions"
BODIES = {
    "an image to fetch": {"messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest"}}]}]},
    "an image in a file": {"messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}]},
    "an image as a text": {"messages": [{"role": "user", "content": [
        {"image_url": "https://evil.example/a.png"}]}]},
    "a sound to fetch": {"messages": [{"role": "user", "content": [
        {"type": "audio_url", "audio_url": {"url": "gopher://127.0.0.1:6379/"}}]}]},
    "an image without a bound": {"messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]}]},
    "an unknown part": {"messages": [{"role": "user", "content": [{"type": "x"}]}]},
    "a cache to fetch": {"messages": [{"role": "user", "content": "x"}],
                         "kv_transfer_params": {"remote_host": "evil.example"}},
    "a place in the queue": {"messages": [{"role": "user", "content": "x"}], "priority": -9},
    "a template": {"messages": [{"role": "user", "content": "x"}], "chat_template": "{{ x }}"},
    "an adapter": {"messages": [{"role": "user", "content": "x"}], "lora_path": "/etc"},
    "no messages": {"messages": []},
    "messages of texts": {"messages": ["x"]},
    "a negative bound": {"messages": [{"role": "user", "content": "x"}], "max_tokens": -1},
    "a fraction as bound": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1.5},
    "two bounds": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1,
                   "max_completion_tokens": 2},
    "many answers": {"messages": [{"role": "user", "content": "x"}], "n": 1000},
    "a stream of a text": {"messages": [{"role": "user", "content": "x"}], "stream": "yes"},
    "another model": {"messages": [{"role": "user", "content": "x"}], "model": "../../etc"},
    "a model by address": {"messages": [{"role": "user", "content": "x"}],
                           "model": "http://evil.example"},
}  # fmt: skip
TEXTS = {
    "no JSON": b"{",
    "deep JSON": b'{"a":' * 5000 + b"1" + b"}" * 5000,
    "a list": b"[]",
    "NaN": b'{"model": NaN}',
    "half a character": b'{"model": "\xff"}',
    "nothing": b"",
}


def test_bodies_that_would_reach_through_the_engine_are_refused(run_front: RunFront) -> None:
    async def scenario(setup: Setup) -> None:
        statuses = {name: (await setup.ask(body, path=CHAT)).status_code
                    for name, body in BODIES.items()}  # fmt: skip
        headers = {"authorization": f"Bearer {KEYS['chat']}", "content-type": "application/json"}
        for name, text in TEXTS.items():
            answer = await setup.client.post(CHAT, content=text, headers=headers)
            statuses[name] = answer.status_code
            assert answer.json()["error"]["message"]
        assert {name: status for name, status in statuses.items() if not 400 <= status < 500} == {}
        assert setup.stubs[0].engine.last_id == 0

    run_front(scenario)


def test_of_a_field_that_comes_twice_the_engine_gets_what_was_checked(run_front: RunFront) -> None:
    async def scenario(setup: Setup) -> None:
        text = b'{"model": "stub", "prompt": "x", "max_tokens": 9000, "max_tokens": 2}'
        headers = {"authorization": f"Bearer {KEYS['chat']}", "content-type": "application/json"}
        answer = await setup.client.post("/v1/completions", content=text, headers=headers)
        assert answer.json()["usage"]["completion_tokens"] == 2

    run_front(scenario)


@pytest.mark.parametrize("authorization", [None, b"", b"Bearer", b"Bearer \xff", b"bearer x y"])
def test_what_is_no_key_finds_nobody(authorization: bytes | None) -> None:
    from ullage.operate.doors.access import find_holder
    from ullage.operate.doors.refusal import Refusal

    def find(*values: bytes | None) -> str:
        headers = [(b"authorization", value) for value in values if value is not None]
        keys = {"a": b"a" * 16, "b": b"b" * 16}
        return find_holder({"type": "http", "headers": headers}, keys, "a key")

    assert find(b"Bearer " + b"b" * 16) == find(b"bearer  " + b"b" * 16) == "b"
    with pytest.raises(Refusal, match="send a key"):
        find(authorization)
