"""The curve by load, its knee, host times, and what a real GPU leaves for the cache."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.unit.serve.test_measures import outcome_of

from ullage.facts.gpus.catalog import find_gpu
from ullage.ground.errors import SpecError
from ullage.ground.protocol.plain import Misfit, document_of
from ullage.ground.units import GIB
from ullage.operate.serve.cache_bytes import real_cache
from ullage.operate.serve.curve import make_curve
from ullage.operate.serve.host_time import MEASURED, HostTime, parse_host_time
from ullage.operate.serve.outcome import Outcome
from ullage.operate.serve.run import Loaded
from ullage.operate.serve.slo import parse_slo
from ullage.operate.serve.task import Task, read_task, write_task
from ullage.operate.serve.traffic import Traffic, load_traffic
from ullage.players.eager.serving.engines.vllm_releases import find_release
from ullage.players.eager.serving.vllm_memory import (
    BETWEEN_GPUS,
    LOADED_KERNELS,
    Step,
    fused_reductions,
)
from ullage.verbs.serve.options import read_loads


def served_at(load: float, seconds: float) -> Loaded:
    """A hundred requests, one in each 1/load seconds, each with its answer after `seconds`."""
    arrivals = np.arange(100) / load
    traffic = Traffic.of("even", arrivals, [10] * 100, [2] * 100)
    ends = arrivals + seconds
    columns: dict[str, Any] = {
        "arrival_s": arrivals, "begin_s": arrivals, "first_token_s": arrivals + seconds / 2,
        "end_s": ends, "output_tokens": np.full(100, 2), "cached_tokens": np.zeros(100, int),
        "num_preemptions": np.zeros(100, int), "usage_frac": np.full(100, min(load / 10, 1.0)),
    }  # fmt: skip
    outcome: Outcome = replace(
        outcome_of(), traffic=traffic, rejected={}, duration_s=float(ends[-1]), **columns
    )
    return Loaded(load, outcome)


RUNS = [served_at(1, 0.5), served_at(4, 0.6), served_at(8, 4.0)]


def test_the_knee_has_the_most_answers_for_each_second_of_an_answer() -> None:
    curve = make_curve(RUNS, None)
    powers = [point.power for point in curve.points]
    by_hand = [100 / (99 / load + each) / each for load, each in ((1, 0.5), (4, 0.6), (8, 4.0))]
    assert powers == pytest.approx(by_hand)
    assert curve.knee.load == 4 and curve.best is None


def test_the_best_load_has_the_most_within_the_objective() -> None:
    curve = make_curve(RUNS, parse_slo("e2e=5s"))
    assert curve.best is not None and curve.best.load == 8
    strict = make_curve(RUNS, parse_slo("e2e=550ms"))
    assert strict.best is not None and strict.best.load == 1


def test_occupancy_counts_the_requests_of_all_loads() -> None:
    rows = make_curve(RUNS, None).by_occupancy
    assert [(row.low_frac, row.num_requests) for row in rows] == [
        (0.0, 100),
        (0.25, 100),
        (0.75, 100),
    ]
    assert rows[-1].ttft_s.p50 == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("text", "loads"), [("1", (1.0,)), ("0.5,2,8", (0.5, 2.0, 8.0)), (" 2 , 1 ", (2.0, 1.0))]
)
def test_loads_are_read(text: str, loads: tuple[float, ...]) -> None:
    assert read_loads(text) == loads


@pytest.mark.parametrize("text", ["", "0", "-1", "fast", "1,1", "nan", "1e9", "1,,2"])
def test_bad_loads_are_refused(text: str) -> None:
    with pytest.raises(Misfit, match="expected different factors"):
        read_loads(text)


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("1ms", HostTime(1e-3)),
        ("1ms+20us", HostTime(1e-3, 2e-5)),
        ("0ms+5us", HostTime(0, 5e-6)),
        ("none", HostTime()),
        ("measured", MEASURED),
        ("launch=40us,http=0s", MEASURED._replace(launch_s=4e-5, http_s=0.0)),
    ],
)
def test_a_host_time_is_read_and_written(text: str, host: HostTime) -> None:
    assert parse_host_time(text) == pytest.approx(host)
    assert parse_host_time(host.text()) == pytest.approx(host)


@pytest.mark.parametrize(
    "text",
    ["", "1", "ms", "1ms+", "1ms+2us+3us", "-1ms", "step=1", "http=1ms,http=2ms", "time=1ms"],
)
def test_a_bad_host_time_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="expected measured, none, the time of a step"):
        parse_host_time(text)


def test_twice_the_load_is_half_the_time_or_twice_the_users() -> None:
    traffic = Traffic.of("two", [0.0, 4.0], [1, 1], [1, 1])
    assert traffic.at_load(2).arrival_s.tolist() == [0.0, 2.0]
    closed = load_traffic("closed:users=3,requests=9,prompt=1,output=1")
    assert [closed.at_load(load).num_users for load in (2, 0.5, 0.01)] == [6, 2, 1]
    with pytest.raises(SpecError):
        closed.at_load(0)


def test_a_task_is_read_as_it_was_written(tmp_path: Any) -> None:
    traffic = load_traffic("closed:users=3,requests=9,prompt=1,output=1,think=5ms")
    task = Task(("m",), "c.json", "l4", traffic, "r.json", (1.0, 0.5), HostTime(1e-3, 2e-5), "c")
    again = read_task(write_task(task, tmp_path))
    assert again.loads == task.loads and again.host == task.host
    assert again.compile_cache == "c"
    assert again.traffic.think_s == 0.005 and again.traffic.num_users == 3


def test_a_real_gpu_has_less_for_the_cache_by_the_code_of_kernels() -> None:
    engine = replace(
        outcome_of().engine, kv_cache_bytes=10 * GIB + 5, block_bytes=1 << 20, num_blocks=10 << 10,
        kv_cache_tokens=16 * (10 << 10),
    )  # fmt: skip
    cache = real_cache(engine, "l4")
    assert cache is not None
    least, likely, most = LOADED_KERNELS
    assert (cache.low_bytes, cache.bytes, cache.high_bytes) == tuple(
        10 * GIB + 5 - size for size in (most, likely, least)
    )
    assert cache.tokens == 16 * (cache.bytes // (1 << 20))
    smaller = real_cache(replace(engine, graph_spread_bytes=1000), "l4")
    assert smaller is not None and smaller.low_bytes == cache.low_bytes
    assert smaller.bytes == cache.bytes + 1000 and smaller.high_bytes == cache.high_bytes + 1000
    assert real_cache(replace(engine, num_blocks=100), "l4") is None, "their number was set"
    assert real_cache(replace(engine, is_cache_given=True), "l4") is None, "their bytes were"


def test_on_two_gpus_it_lacks_what_the_estimate_counts_between_them() -> None:
    alone = replace(
        outcome_of().engine, kv_cache_bytes=10 * GIB, block_bytes=1 << 20, num_blocks=10 << 10,
        hidden=4096, has_graphs=True,
    )  # fmt: skip
    both = replace(alone, tensor_parallel=2)
    step = Step(both.max_num_batched_tokens, both.max_num_seqs, 2, find_release(both.version))
    fused = fused_reductions(find_gpu("h100-80gb"), step, 4096)
    assert fused[2] > 0
    one, two = real_cache(alone, "h100-80gb"), real_cache(both, "h100-80gb")
    assert one is not None and two is not None
    assert one.low_bytes - two.low_bytes == BETWEEN_GPUS[2] + fused[2]
    assert one.high_bytes == two.high_bytes


def test_the_figures_by_load_are_json() -> None:
    from ullage.operate.serve.measures import measure
    from ullage.operate.serve.report import ServeReport
    from ullage.operate.serve.run import Served

    run: Any = type("Run", (), {"devices": (), "torch": "2.13.0"})()
    served = Served(("vllm", "serve", "m"), "l4", RUNS[0].outcome, run, tuple(RUNS))
    report = ServeReport(served, measure(served.outcome, None), None, make_curve(RUNS, None))
    document = json.loads(json.dumps(document_of(report), allow_nan=False))
    assert document["curve"]["knee_load"] == 4
    assert [point["load"] for point in document["curve"]["points"]] == [1, 4, 8]
