"""The forecast: blocks are never lost, and small cases are what a scheduler on paper does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ullage.facts.families.builtin import find_model
from ullage.facts.gpus import find_gpu
from ullage.ground.errors import SpecError
from ullage.operate.serve.forecast.block_pool import BlockPool
from ullage.operate.serve.forecast.forecast import forecast_traffic
from ullage.operate.serve.forecast.simulation import Limits, Simulated, _Simulation, simulate
from ullage.operate.serve.traffic import Traffic, load_traffic
from ullage.players.eager.serving.serving_plan import ServingPlan


def one_second(decodes: int, contexts: int, prompts: Sequence[tuple[int, int]]) -> float:
    return 1.0


def limits(blocks: int, **fields: object) -> Limits:
    """A server with blocks of 16 tokens, one more than can be given out."""
    values: dict[str, object] = {
        "max_num_seqs": 8, "max_num_batched_tokens": 256, "max_model_len": 1024, "is_async": False,
    }  # fmt: skip
    return Limits(blocks + 1, 16, **{**values, **fields})  # type: ignore[arg-type]


def traffic(rows: Sequence[tuple[float, int, int]]) -> Traffic:
    """Requests: arrival, prompt, output."""
    arrivals, prompts, outputs = zip(*rows, strict=True)
    return Traffic.of("test", list(arrivals), list(prompts), list(outputs))


def run(rows: Sequence[tuple[float, int, int]], blocks: int, **fields: object) -> Simulated:
    return simulate(traffic(rows), limits(blocks, **fields), one_second)


def test_a_request_alone_gets_a_token_in_each_step() -> None:
    outcome = run([(0, 32, 5)], 10)
    assert outcome.first_token_s[0] == 1 and outcome.end_s[0] == 5
    assert outcome.num_preemptions.sum() == 0


def test_the_request_that_came_last_loses_its_blocks() -> None:
    # Two prompts of two blocks each fill a cache of four; the third block of the first takes the
    # second's.
    outcome = run([(0, 32, 20), (0, 32, 20)], 4)
    assert outcome.num_preemptions.tolist() == [0, 1]
    assert np.isfinite(outcome.end_s).all()
    assert outcome.end_s[1] > outcome.end_s[0]


def test_a_request_waits_until_its_whole_prompt_has_room() -> None:
    outcome = run([(0, 48, 5), (0, 48, 5)], 4)
    assert outcome.num_preemptions.sum() == 0
    assert outcome.first_token_s[1] > outcome.end_s[0]


def test_what_can_never_run_blocks_those_behind_it() -> None:
    outcome = run([(0, 128, 5), (1, 16, 5)], 4)
    assert not np.isfinite(outcome.end_s).any()


def test_beyond_max_model_len_is_refused() -> None:
    outcome = run([(0, 1024, 5), (1, 16, 5)], 100)
    assert outcome.is_refused.tolist() == [True, False]
    assert np.isfinite(outcome.end_s[1])


def test_equal_blocks_are_found_again() -> None:
    rows = Traffic.of(
        "test", [0.0, 50.0], [160, 160], [4, 4], blocks=[[1, 2], [1, 2]], block_tokens=64
    )
    steps: list[int] = []

    def seconds(decodes: int, contexts: int, prompts: Sequence[tuple[int, int]]) -> float:
        steps.extend(tokens for tokens, _ in prompts)
        return 1.0

    simulate(rows, limits(40), seconds)
    assert steps == [160, 160 - 2 * 64]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.integers(1, 120), st.integers(1, 60)),
        min_size=1, max_size=12,
    ),
    st.integers(12, 40), st.tuples(st.booleans(), st.booleans(), st.booleans()),
)  # fmt: skip
def test_no_block_is_lost_and_jumping_changes_nothing(
    rows: list[tuple[int, int, int]], blocks: int, switches: tuple[bool, bool, bool],
) -> None:  # fmt: skip
    is_async, has_cache, is_shared = switches
    arrivals, prompts, outputs = zip(*rows, strict=True)
    units = [[1, 2, 3, 4, 5, 6, 7][: prompt // 16] if is_shared else [] for prompt in prompts]
    requests = Traffic.of(
        "test", [float(each) for each in arrivals], list(prompts), list(outputs), blocks=units,
        block_tokens=16,
    )  # fmt: skip
    server = limits(blocks, is_async=is_async, has_prefix_caching=has_cache)
    outcomes = []
    for most in (0, 64):
        simulation = _Simulation(requests, server, one_second)
        simulation.most_at_once = most
        simulation.run()
        assert simulation.pool.free == simulation.pool.size
        assert sum(simulation.pool._queue.values()) == simulation.pool.size
        assert not any(simulation.references.values())
        outcomes.append(simulation.result())
    single, jumped = outcomes
    assert np.isfinite(single.end_s).all()
    np.testing.assert_array_equal(single.num_preemptions, jumped.num_preemptions)
    np.testing.assert_allclose(single.end_s, jumped.end_s)


def test_a_pool_keeps_the_beginning_longest() -> None:
    pool = BlockPool(4)
    pool.take(4)
    pool.give("a", 3)
    pool.take(2)
    assert pool.resident("a") == 1 and pool.free == 1
    pool.reclaim("a", 1)
    assert pool.free == 0


def test_the_bytes_decide_the_blocks() -> None:
    config = find_model("llama-3.1-8b").config
    plan = ServingPlan(gpu=find_gpu("h100-80gb"), context=8192)
    requests = load_traffic("poisson:rate=1,prompt=100,output=10,duration=10s")
    forecast = forecast_traffic(config, plan, requests, 4 << 30, one_second)
    assert forecast.limits.num_blocks == 2048 and forecast.tokens == 32768
    with pytest.raises(SpecError, match="nothing is left"):
        forecast_traffic(config, plan, requests, 1 << 20, one_second)
