"""The layout of the KV cache is that of a real vLLM, to the block.

The engine's answers are stored; `python -m benchmarks.serving --python VENV/bin/python` asks again,
with `--built-in` of the built-in models.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.serving.predict import (
    answer_of,
    key_of,
    planned_answer_of,
    plans_of,
    settings_of,
)
from tests.rows import each

from ullage.facts.families.architecture import read_layers
from ullage.facts.families.builtin import find_model, load_models
from ullage.facts.families.config import Config
from ullage.players.eager.serving.engines.vllm import Pool, lay_out
from ullage.players.eager.serving.serving import find_longest
from ullage.players.eager.serving.serving_plan import ServingPlan

FOLDER = Path(__file__).parents[3] / "benchmarks" / "serving"
VECTORS = FOLDER / "vectors.json"
BUILT_IN = json.loads((FOLDER / "built_in.json").read_text())
MODELS = {
    name: model
    for name, model in json.loads(VECTORS.read_text())["models"].items()
    if "answers" in model
}
ASKED = [
    (name, run, answer)
    for name, model in MODELS.items()
    for run, answer in zip(model["runs"], model["answers"], strict=True)
]
STARTS = [row for row in ASKED if "error" not in row[2]]
TOO_LONG = [row for row in ASKED if "estimated maximum" in row[2].get("error", "")]
AS_ON_A_GPU = [(name, plan) for name in load_models() for plan in plans_of(name)]


def label(name: str, run: dict[str, Any], _: dict[str, Any]) -> str:
    """What a start is called where a test names it."""
    return f"{name}, {run['max_model_len']} tokens, prefix cache {run['enable_prefix_caching']}"


each_start = each(("name", "run", "answer"), STARTS, name=label)


def pool_of(name: str, run: dict[str, Any], context: int | None = None) -> Pool:
    config = Config(name, MODELS[name]["config"])
    settings = settings_of(config, run)
    settings = replace(settings, max_model_len=context or settings.max_model_len)
    return lay_out(read_layers(config), settings)


@each_start
def test_the_layout_is_the_engines(name: str, run: dict[str, Any], answer: dict[str, Any]) -> None:
    predicted = answer_of(Config(name, MODELS[name]["config"]), run)
    assert predicted == {figure: answer[figure] for figure in predicted}


@each_start
def test_the_groups_are_the_engines(name: str, run: dict[str, Any], answer: dict[str, Any]) -> None:
    pool = pool_of(name, run)
    groups = sorted((one.num_layers, one.block_size, one.page_bytes) for one in pool.groups)
    real = [(one["layers"], one["block_size"], one["page_bytes"]) for one in answer["groups"]]
    assert groups == sorted(real)


@each_start
def test_what_starts_has_room_for_a_user(
    name: str, run: dict[str, Any], answer: dict[str, Any]
) -> None:
    users = pool_of(name, run).users(run["kv_cache_memory_bytes"])
    assert 1 <= users <= answer["concurrency"]


@each(("name", "run", "answer"), TOO_LONG, name=label)
def test_the_longest_context_is_the_one_that_the_engine_advises(
    name: str, run: dict[str, Any], answer: dict[str, Any]
) -> None:
    kv_bytes, most = run["kv_cache_memory_bytes"], run["max_model_len"]
    assert pool_of(name, run).users(kv_bytes) == 0
    longest = find_longest(lambda context: pool_of(name, run, context), kv_bytes, most)
    assert f"maximum model length is {longest}." in answer["error"]


@each(("name", "plan"), AS_ON_A_GPU, name=key_of)
def test_a_built_in_model_is_laid_out_as_on_a_gpu(name: str, plan: ServingPlan) -> None:
    predicted = planned_answer_of(find_model(name).config, plan)
    answer = BUILT_IN[key_of(name, plan)]
    assert predicted == {figure: answer[figure] for figure in predicted}


def test_there_are_as_many_architectures_as_claimed() -> None:
    types = {MODELS[name]["config"]["model_type"] for name, _, _ in STARTS}
    assert len(types) >= 20
    kinds = {group["kind"] for _, _, answer in STARTS for group in answer["groups"]}
    assert kinds >= {
        "FullAttentionSpec", "SlidingWindowSpec", "ChunkedLocalAttentionSpec", "MLAAttentionSpec",
        "MambaSpec", "CrossAttentionSpec",
    }  # fmt: skip
    assert TOO_LONG


@each("name", MODELS)
def test_each_was_asked_for_two_lengths_with_and_without_the_prefix_cache(name: str) -> None:
    runs = MODELS[name]["runs"]
    settings = {(run["max_model_len"], run["enable_prefix_caching"]) for run in runs}
    assert len(settings) == len(runs) == 4
