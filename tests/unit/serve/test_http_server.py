"""The HTTP server before an engine: one request after the other, and tokens between them."""

from __future__ import annotations

import pytest

from ullage.operate.serve.host_time import NO_HOST_TIME, HostTime
from ullage.operate.serve.http_server import HttpServer, Streamed
from ullage.operate.serve.traffic import Traffic, load_traffic

HOST = HostTime(http_s=0.002, prompt_token_s=0.0001, answer_token_s=0.001)


def moments(server: HttpServer, until_s: float) -> list[tuple[int, float]]:
    """Which request reaches the engine when, to a tenth of a millisecond."""
    taken = []
    for tick in range(round(until_s * 10_000) + 1):
        while (index := server.take(tick / 10_000)) is not None:
            taken.append((index, tick / 10_000))
    return taken


def test_requests_of_one_moment_reach_the_engine_one_by_one() -> None:
    server = HttpServer(Traffic.of("three", [0.0] * 3, [10, 20, 10], [1] * 3), HOST)
    times = moments(server, 0.02)
    assert [index for index, _ in times] == [0, 1, 2]
    assert [time_s for _, time_s in times] == pytest.approx([0.003, 0.007, 0.010], abs=2e-4)


def test_who_streams_takes_requests_in_later() -> None:
    server = HttpServer(Traffic.of("two", [0.0, 0.010], [10, 10], [9, 9]), HOST)
    assert server.take(0.003) == 0
    server.stream(0.009, [Streamed(0, 5, is_last=False)])
    assert server.take(0.0169) is None  # 5 ms of tokens, then 3 ms of the request
    assert server.take(0.0171) == 1
    assert server.first_s == [pytest.approx(0.014), None]


def test_a_user_of_a_closed_loop_is_free_once_its_answer_was_streamed() -> None:
    server = HttpServer(load_traffic("closed:users=1,requests=2,prompt=10,output=1"), HOST)
    assert server.take(0.003) == 0
    server.stream(0.005, [Streamed(0, 1, is_last=True)])
    assert server.next_s == 0.005 and not server.is_over
    assert server.take(0.0089) is None and server.take(0.0091) == 1
    assert server.arrivals.arrival_s[1] == server.end_s[0] == pytest.approx(0.006)
    server.stream(0.010, [Streamed(1, 1, is_last=True)])
    assert server.take(0.010) is None and server.is_over and server.next_s is None


def test_without_time_of_the_host_a_request_is_there_when_it_is_sent() -> None:
    server = HttpServer(Traffic.of("two", [0.5, 0.5], [1000, 1], [1, 1]), NO_HOST_TIME)
    assert server.take(0.4999) is None and server.next_s == 0.5
    assert [server.take(0.5), server.take(0.5), server.take(0.5)] == [0, 1, None]


def test_a_refused_request_frees_its_user() -> None:
    server = HttpServer(load_traffic("closed:users=1,requests=2,prompt=10,output=1"), NO_HOST_TIME)
    assert server.take(0.0) == 0 and server.next_s is None
    server.refuse(1.0)
    assert server.take(1.0) == 1
