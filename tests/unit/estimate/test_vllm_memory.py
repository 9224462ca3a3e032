"""What vLLM's releases count before the cache, and what the real vLLM counted on the phantom."""

from __future__ import annotations

import json
import shlex
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ullage.facts.families.architecture import read_model
from ullage.facts.families.builtin import find_model
from ullage.facts.families.config import Config, read_config
from ullage.facts.families.layers import Attention, Part
from ullage.facts.gpus.catalog import find_gpu, load_estimate_only
from ullage.facts.gpus.nccl import find_nccl
from ullage.ground.errors import SpecError
from ullage.ground.units import GIB, MIB
from ullage.players.eager.serving.engines.vllm_releases import (
    NEWEST,
    RELEASES,
    Runner,
    find_release,
)
from ullage.players.eager.serving.knobs import find_serving_knobs
from ullage.players.eager.serving.model_weights import padding_bytes, weight_bytes, zero_point_bytes
from ullage.players.eager.serving.serving import estimate_serving
from ullage.players.eager.serving.serving_plan import ServingEstimate, ServingPlan
from ullage.players.eager.serving.vllm_memory import (
    Step,
    activations,
    batch_defaults,
    fused_reductions,
    graphs,
    libraries,
)
from ullage.players.eager.term import Verdict
from ullage.verbs.capacity.serving_text import serving_line

ROOT = Path(__file__).parents[3]
STARTS = tomllib.loads((ROOT / "benchmarks/serving/starts.toml").read_text(encoding="utf-8"))
LLAMA = find_model("llama-3.1-8b").config


def config_of(name: str) -> Config:
    return LLAMA if name == "LLAMA" else read_config(ROOT / name)


PHANTOM = [
    (row, shlex.split(row["arguments"].partition(".py ")[2] or "LLAMA 2048 256 32768 0.9"))
    for row in STARTS["phantom"]
]


@pytest.mark.parametrize(("row", "run"), PHANTOM, ids=[row["name"] for row, _ in PHANTOM])
def test_the_trial_step_is_what_vllm_counts_on_the_phantom(
    row: dict[str, Any], run: list[str]
) -> None:
    model = read_model(config_of(run[0]))
    tokens, requests = int(run[1]), int(run[2])
    step = Step(tokens, requests, release=find_release("0.28.0"))
    step = replace(step, is_cached="later" in row["name"])
    spread = activations(model, step, find_gpu("l40s"))
    kept = requests * model.vocab * 4 + requests * model.vocab // 8
    assert (spread.bytes - kept) / GIB == pytest.approx(row["peak_gib"], rel=0.02)


def test_awq_is_as_large_as_vllm_has_it() -> None:
    row, run = PHANTOM[1]
    model = read_model(config_of(run[0]))
    size = sum(weight_bytes(model, "awq").values()) + zero_point_bytes(model, "awq", 1)
    assert size / GIB == pytest.approx(row["weights_gib"], rel=0.003)
    assert zero_point_bytes(model, "gptq", 1) == 0


def test_experts_in_mxfp4_are_padded_as_a_start_prints_them() -> None:
    model = read_model(find_model("gpt-oss-120b").config)
    plain = sum(weight_bytes(model, "mxfp4").values())
    likely, most = padding_bytes(model, "mxfp4", 1, (8, 0))
    assert likely == most and (plain + likely) / GIB == pytest.approx(65.97, rel=0.002)
    assert padding_bytes(model, "mxfp4", 1, (9, 0))[0] == 0
    assert padding_bytes(model, "mxfp4", 1, (10, 0))[1] > most
    assert padding_bytes(model, "bf16", 1, (8, 0)) == (0, 0)


@pytest.mark.parametrize(
    ("version", "model", "runner", "counts_graphs"),
    [
        ("0.6.3", "llama-3.1-8b", Runner.OLD_ENGINE, False),
        ("0.10.2", "llama-3.1-8b", Runner.FIRST, False),
        ("0.20.0", "llama-3.1-8b", Runner.FIRST, True),
        ("0.22.0", "qwen3-8b", Runner.SECOND, False),
        ("0.23.0", "llama-3.1-8b", Runner.FIRST, True),
        ("v0.24.0", "llama-3.1-8b", Runner.SECOND, False),
        ("0.28.0", "gpt-oss-20b", Runner.FIRST, True),
        ("0.28.0", "qwen3-next-80b-a3b", Runner.FIRST, True),
        (None, "gpt-oss-20b", Runner.SECOND, True),
    ],
)
def test_each_release_has_its_runner(
    version: str | None, model: str, runner: Runner, *, counts_graphs: bool
) -> None:
    release = find_release(version)
    found = release.runner_of(read_model(find_model(model).config))
    assert found is runner
    assert release.counts_graphs(found) is counts_graphs


def test_releases_are_in_order_and_the_oldest_is_the_end() -> None:
    since = [release.since for release in RELEASES]
    assert since == sorted(since) and since[-1] <= NEWEST
    with pytest.raises(SpecError, match=r"known from 0\.6 on"):
        find_release("0.5.4")


def test_the_defaults_of_a_step_are_the_releases() -> None:
    large, small = find_gpu("b200"), find_gpu("l4")
    assert batch_defaults(large, find_release("0.27.0")) == (8192, 1024)
    assert batch_defaults(large, find_release("0.28.0")) == (16384, 1024)
    assert batch_defaults(small, find_release("0.6.0"), 20_000) == (20_000, 256)


def test_a_sampler_that_sorts_takes_the_most() -> None:
    model, gpu = read_model(LLAMA), find_gpu("rtx-3090")
    old, filtered = (
        activations(model, Step(2048, 256, release=find_release(version)), gpu).low_bytes
        for version in ("0.13.0", "0.19.0")
    )
    assert old == 256 * model.vocab * 38 + 2 * model.hidden * (2048 + 2 * 256)
    assert filtered < old / 2


def test_the_sampler_runs_while_the_hidden_states_of_all_tokens_are_there() -> None:
    model, gpu = read_model(find_model("llama-3.1-70b").config), find_gpu("h100-80gb")
    steps = [
        Step(tokens, 1024, tensor_parallel=8, release=find_release("0.20.0"), is_cached=True)
        for tokens in (8192, 16384)
    ]
    fewer, more = (activations(model, step, gpu) for step in steps)
    assert more.what == "logits of 1,024 requests, the filter's workspace"
    for name in ("low_bytes", "bytes"):
        assert getattr(more, name) - getattr(fewer, name) == 2 * 8192 * model.hidden


def test_a_first_start_holds_a_copy_of_the_embeddings() -> None:
    model, gpu = read_model(LLAMA), find_gpu("l4")
    unknown, first, later = (
        activations(model, Step(2048, 256, is_cached=is_cached), gpu)
        for is_cached in (None, False, True)
    )
    table = 2 * model.hidden * model.vocab
    assert later.bytes < table < first.bytes == unknown.bytes
    assert (unknown.low_bytes, unknown.bytes) == (later.low_bytes, first.low_bytes)
    assert activations(model, Step(2048, 256, is_compiled=False), gpu).bytes == later.bytes


def test_fewer_requests_have_fewer_graphs() -> None:
    model = read_model(LLAMA)
    many, few = (graphs(model, Step(2048, requests)) for requests in (256, 8))
    assert many.what == "51 batch sizes of 32 layers" and few.what.startswith("5 ")
    assert few.high_bytes < many.low_bytes


def test_what_does_not_fit_beside_the_share_is_no_start() -> None:
    plan = ServingPlan(gpu=find_gpu("t4"), context=1024, utilization=0.999)
    estimate = estimate_serving(find_model("gpt2").config, plan)
    assert estimate.verdict is Verdict.DOES_NOT_FIT
    assert "take a lower utilization" in estimate.reason
    assert sum(term.bytes for term in estimate.terms) == estimate.capacity_bytes


def test_the_gpu_may_have_another_memory_than_the_catalogues() -> None:
    plan = ServingPlan(gpu=find_gpu("rtx-4080"), capacity_bytes=16 * GIB)
    estimate = estimate_serving(LLAMA, plan)
    assert estimate.capacity_bytes == 16 * GIB == sum(term.bytes for term in estimate.terms)


@pytest.mark.parametrize(
    ("name", "form", "ranks", "gpu"),
    [
        ("gpt-oss-120b", "mxfp4", 1, "h100-80gb"),
        ("deepseek-v3", "fp8-block", 8, "h200"),
        ("kimi-k2", "fp8-block", 8, "b300"),
    ],
)
def test_a_built_in_model_is_served_as_it_is_published(
    name: str, form: str, ranks: int, gpu: str
) -> None:
    plan = ServingPlan(gpu=find_gpu(gpu), tensor_parallel=ranks, engine_version="0.33.0")
    estimate = estimate_serving(find_model(name).config, plan)
    assert estimate.plan.weights == form
    assert estimate.verdict is Verdict.FITS


def test_an_encoder_has_no_cache_and_holds_any_number_of_users() -> None:
    plan = ServingPlan(gpu=find_gpu("l4"), users=32)
    estimate = estimate_serving(find_model("all-minilm-l6").config, plan)
    assert estimate.verdict is Verdict.FITS
    assert "KV cache" not in {term.name for term in estimate.terms}
    assert estimate.kv_bytes == (0, 0, 0)
    assert estimate.terms[-1].bytes > 20 * GIB
    assert any("the model has 512 positions" in remark for remark in estimate.remarks)


def test_whisper_is_planned_with_the_positions_of_its_decoder() -> None:
    plan = ServingPlan(gpu=find_gpu("l4"), context=8192, users=8)
    estimate = estimate_serving(find_model("whisper-large-v3").config, plan)
    assert estimate.plan.context == 448
    assert estimate.remarks[0].startswith("the decoder has 448 positions")
    own, cross = (group for group in estimate.kv_groups if group.token_bytes)
    assert own.request_bytes == 448 * own.token_bytes
    assert cross.request_bytes == 1500 * cross.token_bytes
    assert estimate.verdict is Verdict.FITS


def test_a_number_of_parameters_never_fits_and_says_what_is_not_counted() -> None:
    config = Config("13B", {"model_type": "counted", "num_parameters": 13 * 10**9})
    for gpu, verdict in (("h100-80gb", Verdict.MAY_FIT), ("l4", Verdict.DOES_NOT_FIT)):
        estimate = estimate_serving(config, ServingPlan(gpu=find_gpu(gpu)))
        assert estimate.verdict is verdict
        assert "KV cache, activations" in estimate.remarks[0]
        assert sum(term.bytes for term in estimate.terms) == estimate.capacity_bytes
    assert estimate_serving(config, ServingPlan()).terms[0].bytes == 26 * 10**9


def test_the_images_part_of_llava_is_counted() -> None:
    model = read_model(read_config(ROOT / "benchmarks/serving/configs/llava-v1.6-mistral-7b.json"))
    assert weight_bytes(model)[Part.VISION] / GIB == pytest.approx(0.59, abs=0.03)
    assert model.uncounted == ()


INTERNVL = {
    "model_type": "internvl",
    "text_config": {**LLAMA.fields},
    "vision_config": {"hidden_size": 3200, "intermediate_size": 12800, "num_hidden_layers": 45},
}


@pytest.mark.parametrize("engine", ["vllm", "transformers"])
def test_a_tower_that_is_not_counted_widens_the_interval(engine: str) -> None:
    """InternViT-6B has 5.5 x 10^9 parameters beside those of the text part."""

    def estimate(fields: dict[str, Any], gpu: str) -> ServingEstimate:
        plan = ServingPlan(gpu=find_gpu(gpu), context=1024, engine=engine)
        return estimate_serving(Config("vl", fields), plan)

    text, whole = (estimate(fields, "l40s") for fields in (dict(LLAMA.fields), INTERNVL))
    tower = next(term for term in whole.terms if term.name == "vision_config")
    assert tower.low_bytes == 0 and tower.bytes < 2 * 5_708_504_448 < tower.high_bytes
    assert sum(term.bytes for term in whole.terms) == whole.capacity_bytes
    assert whole.kv_bytes[0] < text.kv_bytes[0] and whole.kv_bytes[2] == text.kv_bytes[2]
    assert (text.verdict, whole.verdict) == (Verdict.FITS, Verdict.FITS)
    # 24 GB hold the text's 15 GiB, and not the tower's 11 as well.
    assert estimate(dict(LLAMA.fields), "l4").verdict is Verdict.FITS
    assert estimate(INTERNVL, "l4").verdict is Verdict.MAY_FIT


def test_a_part_that_states_no_sizes_never_fits() -> None:
    fields = INTERNVL | {"vision_config": {"image_size": 448}}
    estimate = estimate_serving(Config("vl", fields), ServingPlan(gpu=find_gpu("h100-80gb")))
    assert estimate.verdict is Verdict.MAY_FIT
    assert estimate.reason.endswith("without vision_config, whose sizes it does not state")


@pytest.mark.parametrize("window", [None, 4096])
def test_a_window_in_llamas_configuration_holds_for_every_layer(window: int | None) -> None:
    """vLLM gives the model's window to each layer that has none of its own (attention.py).

    vLLM 0.28 on the phantom has a SlidingWindowSpec of 4,096 for each layer of such a Llama.
    """
    fields = {**LLAMA.fields, "sliding_window": window}
    layers = read_model(Config("llama", fields)).layers
    assert {layer.window for layer in layers if isinstance(layer, Attention)} == {window}


def test_knobs_leave_more_room_the_best_first() -> None:
    knobs = find_serving_knobs(LLAMA, ServingPlan(gpu=find_gpu("l40s"), context=32768, users=4))
    gains = [knob.gain_bytes for knob in knobs]
    assert gains == sorted(gains, reverse=True) and min(gains) > 0
    assert {"--kv fp8", "cached = true", "--weights fp8", "--tensor 2"} <= {
        knob.change for knob in knobs
    }
    assert find_serving_knobs(LLAMA, ServingPlan()) == ()


def test_the_configurations_of_starts_are_json_of_models_that_are_known() -> None:
    for path in sorted((ROOT / "benchmarks/serving/configs").glob("*.json")):
        assert read_model(read_config(path)).parameters > 10**9, json.loads(path.read_text())


@pytest.mark.parametrize("engine", ["vllm", "transformers"])
def test_gpus_without_cuda_are_estimated_and_said_to_be_compared_with_nothing(engine: str) -> None:
    for entry in load_estimate_only():
        estimate = estimate_serving(LLAMA, ServingPlan(gpu=entry, context=1024, engine=engine))
        assert sum(term.bytes for term in estimate.terms) == estimate.capacity_bytes
        assert any("compared with nothing" in remark for remark in estimate.remarks)
        assert f"{entry.slug}, counted as CUDA: " in serving_line(estimate)
    assert find_gpu("l4").assumptions == ()


def test_without_a_release_the_interval_holds_those_of_the_engine_v1() -> None:
    plan = ServingPlan(gpu=find_gpu("l40s"), context=8192)
    low, likely, high = estimate_serving(LLAMA, plan).kv_bytes
    named = {
        release.name: estimate_serving(LLAMA, replace(plan, engine_version=release.name)).kv_bytes
        for release in RELEASES
        if not release.is_old_engine
    }
    assert low == min(ends[0] for ends in named.values())
    assert high == max(ends[2] for ends in named.values())
    assert likely == named[RELEASES[-1].name][1]


def test_experts_have_the_workspaces_of_their_release() -> None:
    mixture, gpu = read_model(find_model("qwen3-235b-a22b").config), find_gpu("h200")
    old, new = (
        activations(mixture, Step(8192, 1, 8, find_release(version), is_cached=True), gpu).bytes
        for version in ("0.18.0", "0.19.0")
    )
    # 8 experts of 4,096 x 1,536, an eighth on a rank: 4,096 + 192 elements, later 4,096 + 4,096.
    assert new - old == 8192 * 2 * 8 * (4096 - 192)


def test_fused_sums_over_ranks_have_a_workspace() -> None:
    step = Step(8192, 256, 2, find_release("0.33.0"))
    assert fused_reductions(find_gpu("h100-80gb"), step, 8192) == (0, 384 * MIB, 512 * MIB)
    assert fused_reductions(find_gpu("l40s"), step, 8192) == (0, 0, 0)
    assert fused_reductions(find_gpu("h100-80gb"), replace(step, tensor_parallel=8), 8192) == (
        0, 6 * MIB, 32 * MIB,
    )  # fmt: skip


def test_nccl_over_nvlink_is_counted_where_it_starts_after_the_first_reading() -> None:
    linked, step = find_gpu("h100-80gb"), Step(8192, 256, 8, find_release("0.10.2"))
    before = libraries(linked, step, 8192)
    after = libraries(linked, replace(step, release=find_release("0.11.0")), 8192)
    sizes = [size + 16 * MIB for size in find_nccl(linked, 8)]
    assert before.low_bytes - after.low_bytes == sizes[0]
    assert before.bytes - after.bytes == sizes[1]
