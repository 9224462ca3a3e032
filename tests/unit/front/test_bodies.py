"""What large bodies may take: bounded objects while they are read, bytes alone while they wait, and
few of a tenant's at a time.
"""

from __future__ import annotations

import asyncio
import json
import threading
import tracemalloc
from typing import Any

import pytest
from tests.rows import each
from tests.unit.front.conftest import RunFront

pytest.importorskip("httptools", reason="needs the extra ullage[front]")

from tests.unit.front.sockets import Setup, key, until

from ullage.operate.doors.refusal import Refusal
from ullage.operate.front.proxy import app as front_app
from ullage.operate.front.proxy import order
from ullage.operate.front.proxy.order import Order, OrderReader

HEAD = b'{"model": "stub", "max_tokens": 5, "prompt": "x", '
MIB = 2**20


async def post(setup: Setup, body: bytes, tenant: str = "chat") -> tuple[int, str]:
    """The status and the text of an answer."""
    headers = {**key(tenant), "content-type": "application/json"}
    answer = await setup.client.post("/v1/completions", content=body, headers=headers)
    return answer.status_code, answer.text


@each(
    "text",
    [
        b'"stop": [' + b"[]," * 100_000 + b"[]]}",
        b'"response_format": [' + b"0," * 100_000 + b"0]}",
        b'"response_format": [' + b'{"":0},' * 50_000 + b"0]}",
        b'"logit_bias": {' + b'"1":0,' * 100_000 + b'"2":0}}',
        b'"suffix": "' + b'\\"",' * 50_000 + b'""' * 100_000,
        b'","' * 100_000,
        b"[" * 100_000,
    ],
    name=lambda text: str(text[:40]),
)
def test_objects_are_counted_before_they_are_made(
    run_front: RunFront, monkeypatch: pytest.MonkeyPatch, text: bytes
) -> None:
    monkeypatch.setattr(order, "_MAX_VALUES", 2**14)

    async def scenario(setup: Setup) -> None:
        tracemalloc.start()
        try:
            with pytest.raises(Refusal, match=r"values|JSON"):
                read = setup.app.reader.read
                read(HEAD + text, "/v1/completions", "chat", bool, number=1, now_s=0)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert (
            peak < 4 * len(text) + 2 * MIB
        )  # the body, which is made here, and it without escapes

    run_front(scenario)


def test_commas_in_a_text_are_no_values(
    run_front: RunFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(order, "_MAX_VALUES", 2**14)

    async def scenario(setup: Setup) -> None:
        text = 'a,[b{\\"' * 100_000
        status, answer = await post(setup, HEAD.replace(b'"x"', b'"' + text.encode() + b'"')
                                    .strip(b", ") + b"}")  # fmt: skip
        assert status == 400 and "cache" in answer  # it was counted, and is too long

    run_front(scenario)


def test_what_waits_is_bytes(run_front: RunFront) -> None:
    async def scenario(setup: Setup) -> None:
        first = asyncio.create_task(setup.ask({"prompt": [7] * 260_000, "max_tokens": 900}))
        await until(lambda: setup.stubs[0].engine.last_id == 1)
        body = json.dumps(
            {"model": "stub", "prompt": [*range(100_000, 340_000)], "max_tokens": 5}
        ).encode()
        tracemalloc.start()
        try:
            second = asyncio.create_task(post(setup, body))
            waiting = setup.app.board.admission
            await until(lambda: waiting.num_waiting["chat"] == 1)
            size = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        second.cancel()
        first.cancel()
        assert size < 3 * len(body)  # of the client, and of the front

    run_front(scenario, blocks=20_000)


def test_few_bodies_of_a_tenant_are_read_at_a_time(
    run_front: RunFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ten that come slowly four are read; another tenant's is read meanwhile."""
    reading = 0
    original = front_app._read_body

    async def read_body(*arguments: object) -> bytes:
        nonlocal reading
        reading += 1
        return await original(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(front_app, "_read_body", read_body)

    async def scenario(setup: Setup) -> None:
        writers = []
        for number in range(10):
            _, writer = await asyncio.open_connection("127.0.0.1", setup.port)
            length = "transfer-encoding: chunked" if number % 2 else "content-length: 1000000"
            writer.write(
                f"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
                f"authorization: Bearer {key('hog')['authorization'][7:]}\r\n{length}\r\n\r\n"
                .encode() + (b"1\r\n{\r\n" if number % 2 else b"{")
            )  # fmt: skip
            writers.append(writer)
        await until(lambda: reading == 4)
        status, _ = await post(setup, HEAD + b'"user": "' + b"x" * 100_000 + b'"}')
        assert (status, reading) == (400, 5)
        for writer in writers:
            writer.close()
        await until(lambda: setup.app.board.outcomes["hog", "refused 400"] == 10)

    run_front(scenario)


def test_one_large_body_of_a_tenant_is_parsed_at_a_time_beside_the_loop(
    run_front: RunFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    original = OrderReader.read

    def read(*arguments: Any, **named: Any) -> Order:
        names.append(threading.current_thread().name)
        return original(*arguments, **named)

    monkeypatch.setattr(OrderReader, "read", read)

    async def scenario(setup: Setup) -> None:
        body = HEAD + b'"user": "' + b"x" * 100_000 + b'"}'
        await asyncio.gather(*(post(setup, body, "hog") for _ in range(6)))
        assert len(names) == 6 and len({*names}) == 1
        assert names[0] != threading.current_thread().name
        await post(setup, body)
        assert len({*names}) == 2

    run_front(scenario)
