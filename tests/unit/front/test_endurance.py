"""What the hour's benchmark counts as an answer, and as growth."""

from __future__ import annotations

import asyncio

import pytest
from benchmarks.front.endurance import LOST, read_answer, slope


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
