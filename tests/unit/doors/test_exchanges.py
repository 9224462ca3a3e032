"""How an exchange with a client ends: at the server's end, at that of what the client sends, and at
a body whose length two programs could read differently.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

pytest.importorskip("httptools", reason="needs the extra ullage[front]")

from tests.unit.front.sockets import serve_app, until

from ullage.operate.doors import protocol
from ullage.operate.doors.refusal import send_whole

HEAD = b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n"
ENCODINGS = {
    "compressed, then chunked": b"transfer-encoding: gzip, chunked\r\n",
    "as it is": b"transfer-encoding: identity\r\n",
    "chunked twice": b"transfer-encoding: chunked, chunked\r\n",
    "chunked in two headers": b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
    "an unknown word": b"transfer-encoding: xchunked\r\n",
    "a word with a sign": b"transfer-encoding: \x0bchunked\r\n",
    "with a parameter": b"transfer-encoding: chunked;q=1\r\n",
    "nothing": b"transfer-encoding:\r\n",
    "beside a length": b"transfer-encoding: chunked\r\ncontent-length: 5\r\n",
    "behind a length": b"content-length: 5\r\ntransfer-encoding: chunked\r\n",
}

PIECES = {"/stream": b"data: 1\n\n", "/flood": b"x" * 2**20}


class App:
    """Answers requests as they say, and counts them.

    Attributes:
        num_asked: requests that came.
        num_gone: of them, those whose client was seen to hang up.
        answer: answers the requests that wait.
    """

    def __init__(self) -> None:
        self.num_asked = self.num_gone = 0
        self.answer = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answers a request."""
        if scope["type"] != "http":
            return
        self.num_asked += 1
        if scope["path"] in PIECES:
            kind, body = (b"content-type", b"text/event-stream"), PIECES[scope["path"]]
            await send({"type": "http.response.start", "status": 200, "headers": [kind]})
            while True:
                await send({"type": "http.response.body", "body": body, "more_body": True})
                await asyncio.sleep(0.01)
        if scope["path"] == "/wait":
            await receive()
            gone = asyncio.ensure_future(receive())
            answer = asyncio.ensure_future(self.answer.wait())
            await asyncio.wait({gone, answer}, return_when=asyncio.FIRST_COMPLETED)
            answer.cancel()
            if gone.done():
                self.num_gone += 1
                return
            gone.cancel()
        await send_whole(send, 200, b"answer", b"text/plain")


def serve(scenario: Callable[[App, int], Awaitable[None]]) -> None:
    """Runs a scenario against a server."""

    async def all_of_it() -> None:
        app = App()
        async with asyncio.timeout(60), serve_app(app) as port:
            await scenario(app, port)

    asyncio.run(all_of_it())


async def ask(port: int, request: bytes, *, is_shut: bool = False) -> bytes:
    """All that comes until the server closes the connection; shut: and nothing more is sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    if is_shut:
        writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer


def ask_of_one_that_ends(path: bytes) -> bytes:
    """All that comes of a server that is told to end once it has a request; that has a second."""

    async def all_of_it() -> bytes:
        app = App()
        async with asyncio.timeout(60):
            async with serve_app(app) as port:
                reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
                writer.write(HEAD.replace(b"/ ", path + b" ") + b"\r\n")
                await until(lambda: app.num_asked == 1)
                await asyncio.sleep(0.1)
            answer = await reader.read()
            writer.close()
            return answer

    return asyncio.run(all_of_it())


def test_a_body_of_another_encoding_gets_one_answer_and_the_end() -> None:
    smuggled = b"\r\n5\r\nhello\r\n0\r\n\r\n" + HEAD + b"\r\n"

    async def scenario(app: App, port: int) -> None:
        asked = [ask(port, HEAD + lines + smuggled) for lines in ENCODINGS.values()]
        for name, answer in zip(ENCODINGS, await asyncio.gather(*asked), strict=True):
            assert answer.startswith(b"HTTP/1.1 400 "), (name, answer)
            assert answer.count(b"HTTP/1.1") == 1, (name, answer)
            assert b"connection: close" in answer, (name, answer)
        assert app.num_asked == 0

    serve(scenario)


def test_the_answer_says_what_is_wrong_with_an_encoding() -> None:
    async def scenario(app: App, port: int) -> None:
        answer = await ask(port, HEAD + ENCODINGS["compressed, then chunked"] + b"\r\n")
        assert b"'gzip, chunked'" in answer and b"expected 'chunked' alone" in answer

    serve(scenario)


def test_what_is_wrong_behind_a_request_does_not_stand_in_its_answer() -> None:
    async def scenario(app: App, port: int) -> None:
        ask_both = ask(port, HEAD.replace(b"/ ", b"/wait ") + b"\r\n" + b"\0\0\r\n\r\n")
        both = asyncio.create_task(ask_both)
        await until(lambda: app.num_asked == 1)
        app.answer.set()
        answer = await both
        assert answer.startswith(b"HTTP/1.1 200 ") and answer.endswith(b"answer"), answer

    serve(scenario)


def test_a_client_that_sends_no_more_is_answered() -> None:
    async def scenario(app: App, port: int) -> None:
        request = HEAD.replace(b"/ ", b"/wait ") + b"\r\n"
        for num_requests in (1, 2):
            waiting = asyncio.create_task(ask(port, num_requests * request, is_shut=True))
            await asyncio.sleep(0.2)
            app.answer.set()
            answer = await waiting
            assert answer.count(b"HTTP/1.1 ") == num_requests, answer
            assert answer.startswith(b"HTTP/1.1 200 ") and answer.endswith(b"answer"), answer
            app.answer.clear()
            assert app.num_gone == 0

    serve(scenario)


def test_one_that_waits_long_is_answered_too() -> None:
    """Only what is sent to it shows whether it is still there; an interim answer is."""

    async def scenario(app: App, port: int) -> None:
        request = HEAD.replace(b"/ ", b"/wait ") + b"\r\n"
        waiting = asyncio.create_task(ask(port, request, is_shut=True))
        await asyncio.sleep(3 * protocol.PROBE_S)
        app.answer.set()
        answer = await waiting
        assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 "), answer
        assert app.num_gone == 0

    serve(scenario)


def test_one_that_has_closed_is_seen_to_be_gone() -> None:
    async def scenario(app: App, port: int) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD.replace(b"/ ", b"/wait ") + b"\r\n")
        await until(lambda: app.num_asked == 1)
        writer.close()
        await until(lambda: app.num_gone == 1)

    serve(scenario)


@pytest.mark.parametrize("path", [b"/stream", b"/wait", b"/flood"])
def test_what_outlasts_its_time_is_told_without_a_traceback(
    path: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        answer = ask_of_one_that_ends(path)
    if path == b"/stream":
        event = answer.rpartition(b"data: ")[2]
        assert b'"code": 503' in event and b"the server ends" in event, answer[-400:]
        assert answer.endswith(b"\r\n0\r\n\r\n")
    elif path == b"/wait":
        assert answer.startswith(b"HTTP/1.1 503 ") and b"retry-after: 1" in answer, answer
    else:  # its client takes nothing
        assert answer.endswith(b"x")
    assert not [record for record in caplog.records if record.exc_info], caplog.text
