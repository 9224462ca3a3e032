"""The answer for a server: its parts, its interval, and what a change of the plan does to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ullage.facts.families.architecture import MODEL_TYPES, read_model
from ullage.facts.families.builtin import find_model, load_models
from ullage.facts.families.config import Config
from ullage.facts.families.kv_cache import PRECISIONS, request_bytes, token_bytes
from ullage.facts.families.layers import Attention, Latent, Recurrent
from ullage.facts.gpus.catalog import find_gpu
from ullage.ground.errors import SpecError
from ullage.players.eager.serving.engines.vllm import Settings, describe_release, lay_out
from ullage.players.eager.serving.model_weights import FORMATS, find_format, weight_bytes
from ullage.players.eager.serving.serving import estimate_serving
from ullage.players.eager.serving.serving_plan import ServingPlan
from ullage.players.eager.term import Verdict

NAMES = [name for name, model in load_models().items() if model.config.model_type in MODEL_TYPES]
LLAMA = find_model("llama-3.1-8b").config
PLAN = ServingPlan(gpu=find_gpu("h100-80gb"), context=8192)
names = st.sampled_from(NAMES)
kv_bytes = st.integers(0, 80 * 2**30)


@pytest.mark.parametrize("engine", ["vllm", "transformers"])
@pytest.mark.parametrize("gpu", ["h100-80gb", "rtx-4090", "t4"])
def test_the_terms_add_up_to_the_gpu(engine: str, gpu: str) -> None:
    estimate = estimate_serving(LLAMA, replace(PLAN, engine=engine, gpu=find_gpu(gpu)))
    assert sum(term.bytes for term in estimate.terms) == estimate.capacity_bytes
    assert all(term.low_bytes <= term.bytes <= term.high_bytes for term in estimate.terms)
    assert estimate.kv_bytes == tuple(sorted(estimate.kv_bytes))
    assert estimate.users == tuple(sorted(estimate.users))


@given(name=names, gpu=st.sampled_from(["h100-80gb", "h200", "l4", "b200"]))
@settings(deadline=None, max_examples=15)
def test_the_parts_of_every_built_in_model_add_up(name: str, gpu: str) -> None:
    engine = "transformers" if name.startswith(("t5", "flan")) else "vllm"
    plan = replace(PLAN, gpu=find_gpu(gpu), engine=engine)
    estimate = estimate_serving(find_model(name).config, plan)
    assert sum(term.bytes for term in estimate.terms) == estimate.capacity_bytes
    assert estimate.request_bytes == sum(group.request_bytes for group in estimate.kv_groups)
    for size, users in zip(estimate.kv_bytes, estimate.users, strict=True):
        assert users * estimate.request_bytes <= size


@given(name=names, first=kv_bytes, second=kv_bytes, context=st.integers(1, 200_000))
@settings(deadline=None, max_examples=30)
def test_more_bytes_never_hold_less(name: str, first: int, second: int, context: int) -> None:
    layers = read_model(find_model(name).config).layers
    pool = lay_out(layers, Settings(max_model_len=context, max_batched_tokens=8192))
    low, high = sorted((first, second))
    assert pool.num_blocks(low) <= pool.num_blocks(high)
    assert pool.tokens(low) <= pool.tokens(high)
    assert pool.users(low) <= pool.users(high)
    assert pool.num_blocks(high) * (pool.block_bytes if pool.groups else 0) <= high


@given(name=names, context=st.integers(1, 200_000), more=st.integers(1, 100_000))
@settings(deadline=None, max_examples=30)
def test_a_longer_request_never_needs_less(name: str, context: int, more: int) -> None:
    layers = read_model(find_model(name).config).layers
    short, long = (
        lay_out(layers, Settings(max_model_len=length, max_batched_tokens=2048))
        for length in (context, context + more)
    )
    if short.groups:
        assert short.request_blocks <= long.request_blocks


@given(name=names, ranks=st.sampled_from([1, 2, 4]))
@settings(deadline=None, max_examples=20)
def test_fp8_is_never_larger_than_fp16(name: str, ranks: int) -> None:
    model = read_model(find_model(name).config)
    for layer in model.layers:
        assert token_bytes(layer, "fp8", ranks) <= token_bytes(layer, "fp16", ranks)
    try:
        model.check_tensor_parallel(ranks)
    except SpecError:
        return
    sizes = [sum(weight_bytes(model, form, ranks).values()) for form in ("int4", "fp8", "fp16")]
    assert sizes == sorted(sizes)
    assert sum(weight_bytes(model, "fp32", ranks).values()) == 2 * sizes[-1]


@given(name=names, context=st.integers(1, 100_000), batched=st.integers(1, 20_000))
@settings(deadline=None, max_examples=20)
def test_the_engine_never_charges_less_than_is_needed(
    name: str, context: int, batched: int
) -> None:
    layers = read_model(find_model(name).config).layers
    pool = lay_out(layers, Settings(max_model_len=context, max_batched_tokens=batched))
    cached_layers = [layer for layer in layers if isinstance(layer, Attention | Latent | Recurrent)]
    assert pool.request_blocks == 0 or pool.request_bytes >= sum(
        request_bytes(layer, context) for layer in cached_layers
    )


# Figures that their publishers, or other tools' published vectors, state: 16 bits, one GPU.
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama-3.1-8b", 131_072),
        ("llama-3.1-70b", 327_680),
        ("qwen2.5-7b", 57_344),
        ("qwen3-32b", 262_144),
        ("llama-2-7b", 524_288),
        ("deepseek-v3", 70_272),
    ],
)
def test_bytes_of_a_token(name: str, expected: int) -> None:
    layers = read_model(find_model(name).config).layers
    assert sum(token_bytes(layer) for layer in layers) == expected


def test_latents_are_on_every_rank_and_heads_are_cut_until_they_are_repeated() -> None:
    heads = Attention(32, 8, 128)
    assert [token_bytes(heads, "bf16", ranks) for ranks in (1, 2, 8, 16)] == [4096, 2048, 512, 512]
    assert {token_bytes(Latent(128, 576), "bf16", ranks) for ranks in (1, 8)} == {1152}


@pytest.mark.parametrize(
    ("precision", "expected"),
    [
        ("fp16", 2 * 128 * 2),
        ("fp8", 2 * 128),
        ("int8_per_token_head", 2 * (128 + 4)),
        ("int4_per_token_head", 2 * (64 + 4)),
        ("nvfp4", 2 * (64 + 8)),
    ],
)
def test_scales_ride_along(precision: str, expected: int) -> None:
    assert token_bytes(Attention(1, 1, 128), precision) == expected


def test_packed_latents_have_the_size_of_their_kernel() -> None:
    assert token_bytes(Latent(128, 576), "fp8_ds_mla") == 656
    with pytest.raises(SpecError, match="packs latents of 576"):
        token_bytes(Latent(128, 320), "fp8_ds_mla")
    with pytest.raises(SpecError, match="cannot store a latent"):
        token_bytes(Latent(128, 576), "nvfp4")


def test_four_bit_weights_take_their_scales_along() -> None:
    # 4 bits, and for 128 of them an fp16 scale and a 4-bit zero point.
    assert FORMATS["int4"].matrix_size(4096, 4096) == 4096 * 4096 // 2 + 4096 * 32 * 20 // 8
    assert FORMATS["nf4"].matrix_size(64, 64) == 64 * 64 // 2 + 64 * 4


def test_with_the_bytes_that_a_start_has_printed_nothing_is_an_interval() -> None:
    estimate = estimate_serving(LLAMA, replace(PLAN, kv_bytes=40 * 2**30))
    assert sum(term.bytes for term in estimate.terms) == estimate.capacity_bytes
    assert estimate.kv_bytes == (40 * 2**30,) * 3
    assert estimate.tokens == (40 * 2**30 // 131_072,) * 3
    tight = estimate_serving(LLAMA, replace(PLAN, kv_bytes=61 * 2**30))
    assert tight.verdict is Verdict.MAY_FIT, tight.terms[-1]
    too_much = estimate_serving(LLAMA, replace(PLAN, kv_bytes=79 * 2**30))
    assert too_much.verdict is Verdict.DOES_NOT_FIT


def test_generate_serves_what_cannot_be_paged() -> None:
    config = find_model("t5-small").config
    estimate = estimate_serving(config, replace(PLAN, engine="transformers", context=512))
    assert sum(term.bytes for term in estimate.terms) == estimate.capacity_bytes
    # 6 layers of 8 heads of 64: the decoder's own 512 tokens, and the encoder's.
    assert estimate.request_bytes == 2 * 6 * 2 * 8 * 64 * 512 * 2
    assert estimate.request_bytes < estimate.block_bytes < 2 * estimate.request_bytes
    with pytest.raises(SpecError, match="for one GPU alone"):
        plan = replace(PLAN, engine="transformers", tensor_parallel=2)
        estimate_serving(config, plan)


def test_experts_in_mxfp4() -> None:
    model = read_model(find_model("gpt-oss-120b").config)
    size = sum(weight_bytes(model, "mxfp4").values())
    assert size / 2**30 == pytest.approx(60.8, abs=0.05)  # as its model card states


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (None, "bf16"),
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8-block"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, "awq"),
        ({"quant_method": "gptq", "bits": 4}, "gptq"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "nf4"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
    ],
)
def test_the_checkpoint_says_how_it_is_stored(fields: dict[str, Any] | None, expected: str) -> None:
    config = Config("c", {**LLAMA.fields, "quantization_config": fields})
    assert find_format(config) == expected
    assert estimate_serving(config, PLAN).plan.weights == expected


def test_a_format_that_is_not_known_is_asked_for() -> None:
    odd = {"quant_method": "gptq", "bits": 3}
    config = Config("c", {**LLAMA.fields, "quantization_config": odd})
    with pytest.raises(SpecError, match=r"'quantization_config.quant_method'.*name the format"):
        estimate_serving(config, PLAN)
    assert estimate_serving(config, replace(PLAN, weights="int4")).terms


def test_a_window_makes_the_printed_tokens_depend_on_the_context() -> None:
    config = find_model("gemma-3-1b").config
    short, long = (estimate_serving(config, replace(PLAN, context=each)) for each in (2048, 32768))
    assert long.tokens[1] > 1.5 * short.tokens[1]
    assert long.num_blocks == short.num_blocks


@pytest.mark.parametrize(
    ("gpu", "users", "verdict"),
    [
        ("h100-80gb", 20, Verdict.FITS),
        ("h100-80gb", 10_000, Verdict.DOES_NOT_FIT),
        ("t4", 1, Verdict.DOES_NOT_FIT),
    ],
)
def test_the_verdict(gpu: str, users: int, verdict: Verdict) -> None:
    estimate = estimate_serving(LLAMA, replace(PLAN, gpu=find_gpu(gpu), users=users))
    assert estimate.verdict is verdict, estimate.reason


def test_between_the_ends_of_the_interval_it_may_fit() -> None:
    low, _, high = estimate_serving(LLAMA, PLAN).users
    estimate = estimate_serving(LLAMA, replace(PLAN, users=(low + high + 1) // 2))
    assert estimate.verdict is Verdict.MAY_FIT


def test_the_longest_context_is_the_longest() -> None:
    plan = replace(PLAN, gpu=find_gpu("rtx-4090"), weights="int4")
    longest = estimate_serving(LLAMA, replace(plan, utilization=0.5)).longest[1]
    assert 0 < longest < 131_072
    at, above = (
        estimate_serving(LLAMA, replace(plan, utilization=0.5, context=longest + more)).users[1]
        for more in (0, 16)
    )
    assert (at, above) == (1, 0)


def test_without_a_gpu_the_request_is_still_told() -> None:
    estimate = estimate_serving(LLAMA, ServingPlan(context=1000))
    assert estimate.request_bytes == 131_072 * 1000
    assert estimate.verdict is None
    assert estimate.capacity_bytes is None


@pytest.mark.parametrize(
    ("version", "remark"),
    [
        ("0.32.1", ""),
        ("v0.32.0", ""),
        (None, "the cache's interval holds those of 0.8 to 0.33"),
        ("0.40.0", "has not been checked"),
        ("0.9.2", "0.32"),
    ],
)
def test_a_version_that_is_not_known_is_said(version: str | None, remark: str) -> None:
    assert remark in describe_release(version)
    assert bool(describe_release(version)) == bool(remark)


def test_a_model_that_the_engine_does_not_serve_is_refused() -> None:
    with pytest.raises(SpecError, match=r"vLLM 0.32 does not serve t5; plan it with engine trans"):
        estimate_serving(find_model("t5-small").config, PLAN)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"context": 0}, "context: found 0"),
        ({"engine": "vlm"}, "engine: found 'vlm'"),
        ({"kv": "fp6"}, "kv: found 'fp6'"),
        ({"utilization": 1.5}, "utilization: found 1.5"),
        ({"weights": "int5"}, "weights='int5' is not a format"),
        ({"tensor_parallel": 3}, "num_attention_heads=32 is not a multiple"),
        ({"engine": "transformers", "kv": "fp8"}, "caches are planned in 16 bits"),
        ({"engine_version": "newest"}, "'newest' is not a version"),
    ],
)
def test_an_impossible_plan_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        estimate_serving(LLAMA, replace(PLAN, **fields))


def test_every_precision_stores_a_head() -> None:
    assert all(token_bytes(Attention(8, 8, 128), name) > 0 for name in PRECISIONS)
