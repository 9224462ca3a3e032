"""The attention of a step: at the points of the grid what the clock says, between them in order."""

from __future__ import annotations

import pytest

from ullage.clock.costs import cost_of
from ullage.clock.costs.traffic import start_s
from ullage.clock.given_work import KernelLaunch, Product
from ullage.clock.kernels import attention_decode, attention_forward
from ullage.clock.work import Attention
from ullage.facts.families.architecture import read_model
from ullage.facts.families.builtin import find_model
from ullage.facts.gpus import find_gpu
from ullage.operate.serve.attention_times import AttentionTimes

GPU = find_gpu("h100-80gb")


@pytest.fixture(scope="module")
def llama() -> AttentionTimes:
    return AttentionTimes(GPU, read_model(find_model("llama-3.1-8b").config))


def test_a_point_of_the_grid_is_the_table(llama: AttentionTimes) -> None:
    decode = attention_decode(GPU, Attention(64, 32, 8, 128, 1, 2048), "bfloat16").s
    assert llama.decode_s(64, 2048) == pytest.approx(32 * decode)
    prefill = attention_forward(GPU, Attention(1, 32, 8, 128, 4096, 4096), "bfloat16").s
    assert llama.prefill_s(4096, 4096) == pytest.approx(32 * prefill)


def test_longer_contexts_and_more_requests_take_longer(llama: AttentionTimes) -> None:
    contexts = [llama.decode_s(32, context) for context in (500, 1500, 6000, 40_000)]
    requests = [llama.decode_s(number, 4000) for number in (1, 7, 50, 300)]
    assert contexts == sorted(contexts) and requests == sorted(requests)
    assert llama.decode_s(0, 100) == 0


def test_the_parts_of_a_prompt_are_the_whole(llama: AttentionTimes) -> None:
    parts = llama.prefill_s(4096, 4096) + llama.prefill_s(4096, 8192)
    assert parts == pytest.approx(llama.prefill_s(8192, 8192))
    assert llama.prefill_s(4096, 8192) > 2 * llama.prefill_s(4096, 4096)


def test_a_cache_in_eight_bits_is_read_in_half_the_time() -> None:
    model = read_model(find_model("llama-3.1-8b").config)
    plain, packed = AttentionTimes(GPU, model), AttentionTimes(GPU, model, 1, "fp8_e4m3")
    assert 0.4 < packed.decode_s(64, 8192) / plain.decode_s(64, 8192) < 0.7
    assert packed.prefill_s(4096, 4096) == plain.prefill_s(4096, 4096)


def test_ranks_share_the_heads() -> None:
    model = read_model(find_model("llama-3.1-8b").config)
    alone, shared = AttentionTimes(GPU, model), AttentionTimes(GPU, model, ranks=2)
    assert shared.decode_s(64, 8192) < 0.7 * alone.decode_s(64, 8192)


def test_launches_of_attention_leave_their_start(llama: AttentionTimes) -> None:
    launch = KernelLaunch("_ZN5flash16flash_fwd_kernelI", (8, 32, 1), 128, (1 << 26, 1 << 28))
    other = Product(4096, 8, 4096, 1, "bfloat16", 2)
    works = [launch, other, launch]
    taken_s = sum(cost_of(GPU, work).duration.s for work in works)
    left_s = llama.without(taken_s, works)
    assert left_s == pytest.approx(cost_of(GPU, other).duration.s + 2 * start_s(GPU))
    assert llama.without(0.5, [other]) == 0.5
    latent = AttentionTimes(GPU, read_model(find_model("deepseek-v3").config))
    assert latent.without(taken_s, works) == taken_s
