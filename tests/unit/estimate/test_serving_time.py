"""The time of a prompt and of a token, from the configuration alone."""

from __future__ import annotations

from typing import Any

import pytest

import ullage
from ullage.facts.families.find import find_config
from ullage.facts.gpus import find_gpu
from ullage.ground.errors import SpecError
from ullage.players.eager.serving.serving_plan import ServingPlan
from ullage.players.eager.time.serving import ServingTime, time_serving


def times(model: str = "llama-3.1-8b", gpu: str = "h100-80gb", **fields: Any) -> ServingTime:
    return time_serving(find_config(model).config, ServingPlan(gpu=find_gpu(gpu), **fields))


def test_a_token_takes_at_least_its_weights_and_cache() -> None:
    """16.1 GB of weights and, for 8,192 tokens, 1.07 GB of keys and values, at 3.35 TB/s."""
    time = times(users=1, context=8192)
    floor = (16.06e9 - 1.05e9 + 1.07e9) / 3.35e12  # the embedding is looked up
    assert floor < time.decode.low_s
    assert time.decode.s < 1.8 * floor


def test_a_prompt_takes_at_least_its_operations() -> None:
    time = times(users=1, context=4096)
    floor = 2 * (8.03e9 - 1.05e9) * 4096 / 989e12
    assert floor < time.prefill.low_s
    assert time.prefill.s < 2.5 * floor


def test_what_takes_longer() -> None:
    one, many = times(users=1), times(users=32)
    assert one.decode.s < many.decode.s < 16 * one.decode.s
    assert many.tokens_per_s.s > 4 * one.tokens_per_s.s
    assert times(context=1024).decode.s < one.decode.s
    assert times(weights="fp8").decode.s < one.decode.s
    assert times(weights="awq").decode.s < times(weights="fp8").decode.s
    assert times(tensor_parallel=2).decode.s < one.decode.s < 2 * times(tensor_parallel=2).decode.s
    assert times(gpu="a100-80gb").decode.s > one.decode.s


def test_few_experts_are_read_for_few_tokens() -> None:
    """Of Mixtral's eight experts two are read for one token, and all for many."""
    one, many = (times("mixtral-8x7b", users=users, tensor_parallel=2) for users in (1, 64))
    assert many.decode.s > 2 * one.decode.s
    assert any("equally often" in line for line in one.basis)


@pytest.mark.parametrize("model", ["gemma-2-9b", "gpt-oss-20b", "deepseek-v3", "qwen3-30b-a3b"])
def test_other_models_have_times(model: str) -> None:
    time = times(model, users=4, tensor_parallel=4)
    for low, likely, high in (time.prefill, time.decode):
        assert 0 < low <= likely <= high


def test_an_answer_with_time() -> None:
    answer = ullage.capacity("llama-3.1-8b", gpu="h100-80gb", users=4, price=2.0)
    assert answer.time is not None
    assert answer.time.million_tokens is not None
    expected = answer.time.decode.s / 4 * 1e6 * 2 / 3600
    assert answer.time.million_tokens.likely == pytest.approx(expected)
    assert answer.document["time"]["decode_s"] == list(answer.time.decode)
    assert "further token" in answer.text()
    assert "further token" in answer.html
    with pytest.raises(SpecError, match="on which GPU"):
        ullage.capacity("llama-3.1-8b", time=True)
