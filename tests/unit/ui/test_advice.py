"""What else could be: each answer is what the estimate itself says of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ullage.facts.families.builtin import find_model
from ullage.facts.gpus import find_gpu, load_catalog
from ullage.ground.errors import SpecError
from ullage.players.eager.serving.gpu_ranking import rank_for_serving
from ullage.players.eager.serving.serving import ServingPlan, estimate_serving
from ullage.players.eager.term import Verdict
from ullage.players.eager.training.answer import find_knobs, rank_gpus
from ullage.players.eager.training.estimate import estimate_training
from ullage.players.eager.training.recipe import Recipe
from ullage.verbs.ui.advice import advise
from ullage.verbs.ui.answers import BadQuery
from ullage.verbs.ui.shape import reshape

Ask = Callable[..., Any]
TRAIN: dict[str, Any] = {
    "model": "gpt2", "gpu": "t4", "recipe": {"length": 256, "batch": 2, "precision": "amp-fp16"},
}  # fmt: skip
SERVE: dict[str, Any] = {
    "model": "llama-3.1-8b", "gpu": "l4", "serve": {"context": 8192, "users": 16},
}  # fmt: skip
GPT2 = find_model("gpt2").config
RECIPE = Recipe(length=256, batch=2, precision="amp-fp16")


def rows(about: str, query: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = advise({"about": about, "query": query})["rows"]
    return found


def test_gpus_and_knobs_are_those_of_the_command_line() -> None:
    ranked = [row["gpu"] for row in rows("gpus", TRAIN)]
    assert ranked == [row.gpu for row in rank_gpus(GPT2, RECIPE, load_catalog())]
    named = [row["name"] for row in rows("knobs", TRAIN)]
    assert named == [knob.name for knob in find_knobs(GPT2, RECIPE, find_gpu("t4"))]


def test_the_largest_of_each_fits_and_one_more_does_not() -> None:
    gpu = find_gpu("t4")
    found = {row["knob"]: row["value"] for row in rows("largest", TRAIN)}
    assert set(found) == {"batch", "length", "depth"}

    def needs(knob: str, value: int) -> int:
        if knob == "depth":
            return estimate_training(reshape(GPT2, depth=value), RECIPE, gpu).high_bytes
        changed: Any = {knob: value}
        return estimate_training(GPT2, replace(RECIPE, **changed), gpu).high_bytes

    for knob in ("batch", "depth"):
        assert needs(knob, found[knob]) <= gpu.total_bytes < needs(knob, found[knob] + 1), knob
    assert found["length"] == 1024  # the positions that it has


def test_a_job_that_is_spread_is_ranked_by_its_own_gpus() -> None:
    layout = {"sharding": "fsdp", "data": 4, "pipeline": 2, "micro_batches": 2}
    recipe = {"length": 256, "batch": 2, "layout": layout}
    query = {"model": "llama-3.2-1b", "gpu": "t4", "recipe": recipe}
    assert {row["count"] for row in rows("gpus", query)} == {8, None}
    depth = next(row["value"] for row in rows("largest", query) if row["knob"] == "depth")
    assert depth > 16
    huge = {**query, "recipe": {**recipe, "batch": 4096}}
    depths = [row for row in rows("largest", huge) if row["knob"] == "depth"]
    assert depths[0]["value"] is None and depths[0]["high_bytes"] > find_gpu("t4").total_bytes


def test_a_model_of_one_size_is_not_asked_for_another() -> None:
    query = {"model": "vit-base", "gpu": "t4", "recipe": {"image": 224, "batch": 2}}
    assert {row["knob"] for row in rows("largest", query)} == {"batch", "depth"}


def test_an_image_model_is_asked_for_its_images() -> None:
    query = {"model": "resnet18", "gpu": "t4", "recipe": {"image": 64, "batch": 2}}
    assert {row["knob"] for row in rows("largest", query)} >= {"batch", "image"}


def test_servers_are_ranked_by_how_many_gpus_hold_the_users() -> None:
    ranked = rows("gpus", SERVE)
    assert len(ranked) == len(load_catalog())
    counts = [row["count"] or 9 for row in ranked]
    assert counts == sorted(counts) and {1, 2} <= set(counts)
    config = find_model("llama-3.1-8b").config
    for row in ranked[::8]:
        plan = ServingPlan(find_gpu(row["gpu"]), 8192, 16, tensor_parallel=row["count"] or 8)
        found = estimate_serving(config, plan)
        assert (found.verdict is Verdict.FITS) == (row["count"] is not None)
        assert row["count"] is None or found.users[0] == row["users"] >= 16
        if row["count"] not in (None, 1):
            fewer = estimate_serving(config, replace(plan, tensor_parallel=row["count"] // 2))
            assert fewer.verdict is not Verdict.FITS


def test_layers_that_cannot_be_divided_stay_on_one_gpu() -> None:
    config = find_model("gpt2-xl").config  # 25 heads
    ranked = rank_for_serving(config, ServingPlan(context=1024, users=200), load_catalog())
    assert {row.count for row in ranked} == {1, None}


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ([], "the question"),
        ({"about": "gpus"}, "query is missing"),
        ({"about": "weather", "query": TRAIN}, "gpus, largest, knobs"),
        ({"about": ["gpus"], "query": TRAIN}, "about is .*; expected a text"),
        ({"about": "knobs", "query": SERVE}, "expected gpus"),
    ],
)
def test_a_question_that_the_page_does_not_ask_is_refused(asked: object, says: str) -> None:
    with pytest.raises(BadQuery, match=says):
        advise(asked)


def test_what_cannot_be_is_a_problem() -> None:
    with pytest.raises(SpecError, match="neither a file nor a built-in model"):
        rows("gpus", {**TRAIN, "model": "gpt-9000"})


def test_the_server_asks_a_process_of_its_own(ask: Ask) -> None:
    found = ask("POST", "/advice", {"about": "knobs", "query": TRAIN})
    assert found.json["rows"] == rows("knobs", TRAIN)
    found = ask("POST", "/advice", {"about": "gpus", "query": {**TRAIN, "gpu": "t4", "depth": 0}})
    assert found.status == 200 and "at least 1" in found.json["problem"]
