"""The experts of a step: those that its tokens choose, instead of all that a launch is handed."""

from __future__ import annotations

import pytest

from ullage.clock.costs import cost_of
from ullage.clock.given_work import GivenWork, KernelLaunch, Product
from ullage.facts.families.builtin import find_model
from ullage.facts.families.config import Config
from ullage.facts.gpus import find_gpu
from ullage.operate.serve.expert_times import ExpertTimes

GPU = find_gpu("h100-80gb")
WEIGHTS = KernelLaunch(
    "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x256x128x1", (384, 1, 1), 256,
    (184320, 94208, 272629760, 18874368),
)  # fmt: skip
OTHER = Product(2560, 8, 2880, 1, "bfloat16", 2)


def experts(name: str = "gpt-oss-120b", quantization: str | None = None) -> ExpertTimes:
    return ExpertTimes(GPU, find_model(name).config, 2, quantization)


def test_few_tokens_read_few_experts() -> None:
    times = experts()
    # 4 of 128 experts for one token; of 36 layers with three matrices of 2,880 x 2,880 each, in
    # 4.25 bits on two GPUs.
    expert_bytes = 36 * 3 * 2880 * 2880 * 4.25 / 8 / 2
    one_s, all_s = (num * expert_bytes / GPU.bandwidth_bytes_per_s for num in (4, 128))
    assert one_s < times.seconds(1) < 5 * one_s  # kernels of a few megabytes take their start
    assert all_s < times.seconds(512) < 2.5 * all_s
    seconds = [times.seconds(tokens) for tokens in (1, 2, 4, 8, 16, 32, 64, 128)]
    assert seconds == sorted(seconds)


def test_many_tokens_take_the_products_time() -> None:
    times = experts()
    rate = 2 * 4 * 36 * 3 * 2880 * 2880 / 2  # operations of a token on each GPU
    assert times.seconds(65536) > 65536 * rate / 990e12


def test_kernels_of_experts_give_way_to_what_the_tokens_choose() -> None:
    times = experts()
    works: list[GivenWork] = [WEIGHTS, OTHER, WEIGHTS]
    taken_s = sum(cost_of(GPU, work).duration.s for work in works)
    corrected = times.correct(taken_s, works, 8)
    assert corrected == pytest.approx(cost_of(GPU, OTHER).duration.s + times.seconds(8))
    assert times.correct(0.5, [OTHER], 8) == 0.5


def test_a_model_without_experts_is_as_it_was_measured() -> None:
    times = experts("llama-3.1-8b")
    assert times.num_chosen == 0
    assert times.correct(0.5, [WEIGHTS], 8) == 0.5


def test_the_format_is_that_of_the_checkpoint_or_the_command() -> None:
    plain, fp8 = (experts("qwen3-30b-a3b", each).seconds(64) for each in (None, "fp8"))
    assert 0.4 * plain < fp8 < 0.8 * plain
    assert experts(quantization="fp8").seconds(64) == experts().seconds(64)
    fields = find_model("qwen3-30b-a3b").config.fields
    unknown = Config("mine", {**fields, "quantization_config": {"quant_method": "other"}})
    assert ExpertTimes(GPU, unknown, 2, "other").seconds(64) == plain
    assert ExpertTimes(GPU, unknown, 2, "awq_marlin").seconds(64) < fp8
