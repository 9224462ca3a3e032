"""What the hour's benchmark counts as an answer, and as growth."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from benchmarks.front.endurance import (
    LOST,
    Journal,
    ask,
    describe_light,
    read_answer,
    slope,
    write_request,
)
from benchmarks.front.odd_engine import ANSWERS, MODEL
from benchmarks.front.processes import free_port, program, write_front


def test_the_slope_is_that_of_the_line_whatever_single_peaks_say() -> None:
    line = [(10.0 * number, 50_000 + 2 * number) for number in range(100)]
    peaks = [(when, size + 90_000 * (number % 25 == 7)) for number, (when, size) in enumerate(line)]
    assert slope(line)[0] == pytest.approx(720.0)
    assert slope(peaks)[0] == pytest.approx(720.0, rel=0.1)
    assert slope(line)[1] == pytest.approx(0.0, abs=1e-6) and slope(peaks)[1] > 1000


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (b"HTTP/1.1 429 X\r\ncontent-length: 2\r\n\r\n{}", "429"),
        (b"HTTP/1.1 200 OK\r\n\r\n3\r\nabc\r\n0\r\n\r\n", "200"),
        (b'HTTP/1.1 200 OK\r\n\r\n9\r\n{"error"}\r\n0\r\n\r\n', "broke off, and says so"),
        (b"HTTP/1.1 200 OK\r\n\r\n3\r\nabc\r\n", LOST),
    ],
)
def test_an_answer_is_whole_or_lost(answer: bytes, outcome: str) -> None:
    async def read() -> str:
        reader = asyncio.StreamReader()
        reader.feed_data(answer)
        reader.feed_eof()
        return await read_answer(reader)

    assert asyncio.run(read()) == outcome


@pytest.mark.parametrize(
    ("outcome", "kill_s", "judged"),
    [
        ("200", 1.0, "200"),
        (LOST, 1.0, LOST),
        ("502", 1.0, "502; an engine was killed meanwhile"),
        ("502", -1.0, "502, not 200"),  # before it was sent
        ("429", 1.0, "429, not 200"),  # of which no kill is the cause
    ],
)
def test_a_kill_excuses_what_breaks_off_alone(outcome: str, kill_s: float, judged: str) -> None:
    now_s = time.monotonic()
    journal = Journal(kills=[now_s - 10 + kill_s])
    assert journal.judge(outcome, "200", now_s - 10) == judged


def test_the_light_tenants_time_is_compared_with_that_alone() -> None:
    alone = [(float(second), 0.1) for second in range(100)]
    loaded = [(100.0 + second, 0.1 if second % 10 else 0.25) for second in range(1000)]
    text = describe_light(Journal(light=alone + loaded, loaded_s=100.0))
    assert "100 times alone, 1,000 times under" in text and "**2.50 times** that alone" in text


def test_each_answer_of_the_odd_engine_gets_its_status(tmp_path: Path) -> None:
    pytest.importorskip("httptools", reason="needs the extra ullage[front]")
    from tests.unit.front.sockets import serve_app

    from ullage.operate.front.proxy.app import make_front
    from ullage.operate.front.settings import load_front

    async def ask_all() -> dict[str, str]:
        async with make_front(load_front(tmp_path)) as app, serve_app(app) as own_port:
            requests = {name: write_request(f'"prompt": "{name}"', model=MODEL) for name in ANSWERS}
            return {name: await ask(own_port, request) for name, request in requests.items()}

    port = free_port()
    write_front(tmp_path, [port], 256, ["load"], model=MODEL)
    with program(["-m", "benchmarks.front.odd_engine", "--port", str(port)], port):
        got = asyncio.run(ask_all())
    assert got == {name: status for name, (_, status) in ANSWERS.items()}
