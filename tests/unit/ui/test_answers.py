"""Queries: what can be asked, and what is said where it cannot be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ullage.facts.families.builtin import find_model
from ullage.facts.gpus import find_gpu
from ullage.ground.errors import SpecError
from ullage.players.eager.training.estimate import estimate_training
from ullage.players.eager.training.recipe import Recipe
from ullage.verbs.ui.answers import BadQuery, Query, answer, make_loop, read

Ask = Callable[..., Any]
TRAIN: dict[str, Any] = {
    "model": "llama-3.2-1b",
    "gpu": "l4",
    "recipe": {"length": 512, "batch": 2, "lora": None},
}
SERVE: dict[str, Any] = {
    "model": "llama-3.1-8b",
    "gpu": "h100-80gb",
    "serve": {"context": 4096, "users": 8, "utilization": 1},
}


def test_the_page_says_what_the_library_says() -> None:
    found = answer(TRAIN)["document"]
    config = find_model("llama-3.2-1b").config
    expected = estimate_training(config, Recipe(batch=2, length=512), find_gpu("l4"))
    assert found["used_bytes"] == expected.bytes
    assert sum(term["bytes"] for term in found["terms"]) == found["used_bytes"]


def test_serving_fills_the_gpu() -> None:
    found = answer(SERVE)["document"]
    assert found["kind"] == "serving" and found["gpu"] == "h100-80gb"
    assert sum(term["bytes"] for term in found["terms"]) == found["capacity_bytes"]
    low, likely, high = found["users"]
    assert 8 <= low <= likely <= high


def test_a_configuration_of_the_users_own_is_the_same_as_the_built_in_one() -> None:
    own = {**TRAIN, "config": dict(find_model("llama-3.2-1b").config.fields)}
    del own["model"]
    assert answer(own)["document"]["terms"] == answer(TRAIN)["document"]["terms"]


def test_a_model_is_turned() -> None:
    whole = answer(TRAIN)["document"]["model"]["num_parameters"]
    half = answer({**TRAIN, "depth": 8})["document"]["model"]["num_parameters"]
    wide = answer({**TRAIN, "width": 4096})["document"]["model"]["num_parameters"]
    assert half < whole < wide


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": "llama-9000"}, "neither a file nor a built-in model"),
        ({"gpu": "h1000"}, "unknown GPU"),
        ({"depth": 0}, "at least 1"),
        ({"width": 1000}, "multiple of"),
        ({"config": []}, "expected an object"),
        ({"config": {"model_type": "llama"}}, "it is missing; add it"),
        ({"config": {"model_type": "alpaca"}}, "model_type"),
        ({"recipe": {"length": 512, "batch": 0}}, "batch: found 0"),
        ({"recipe": {"length": 512, "precision": "fp12"}}, "precision"),
        ({"recipe": {"length": 512, "lora": {"rank": 0}}}, "rank"),
        ({"recipe": {}}, "length"),
    ],
    ids=str,
)
def test_what_cannot_be_is_told_in_a_sentence(ask: Ask, changes: dict[str, Any], says: str) -> None:
    found = ask("POST", "/estimate", {**TRAIN, **changes})
    assert found.status == 200  # the question was in order
    assert says in found.json["problem"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"colour": "x"}, "colour"),
        ({"gpu": 7}, "expected a text"),
        ({"depth": "12"}, "whole number"),
        ({"depth": True}, "whole number"),
        ({"recipe": []}, "expected an object"),
        ({"recipe": {"batch": 1.5}}, "whole number"),
        ({"recipe": {"size": 1}}, "size"),
        ({"recipe": {"lora": {"targets": [1]}}}, "expected a text"),
        ({"recipe": {"layout": None}}, "layout"),
        ({"serve": {"gpu": "h100-80gb"}}, "gpu"),
    ],
    ids=str,
)
def test_what_the_page_does_not_ask_is_refused(
    ask: Ask, changes: dict[str, Any], says: str
) -> None:
    found = ask("POST", "/estimate", {**TRAIN, **changes})
    assert found.status == 400 and says in found.json["problem"]


def query(**changes: object) -> Query:
    return read(Query, {**TRAIN, **changes}, "the query")


def test_records_within_a_recipe_are_read() -> None:
    recipe = query(
        recipe={"lora": {"rank": 4, "targets": ["q_proj"]}, "layout": {"data": 4}}
    ).recipe
    assert recipe.lora is not None and recipe.lora.targets == ("q_proj",)
    assert recipe.layout.data == 4


def test_a_query_names_a_gpu() -> None:
    with pytest.raises(BadQuery, match="gpu is missing"):
        answer({"model": "llama-3.2-1b"})


def test_a_job_of_several_ranks_is_not_checked(ask: Ask) -> None:
    query = {**TRAIN, "recipe": {"length": 512, "layout": {"data": 2}}}
    assert "ranks" in ask("POST", "/check", query).json["problem"]


def test_the_catalogue_has_all_that_is_chosen_from(ask: Ask) -> None:
    found = ask("GET", "/catalogue").json
    assert {"llama-3.1-8b", "vit-base"} <= {one["name"] for one in found["models"]}
    h100 = next(one for one in found["gpus"] if one["slug"] == "h100-80gb")
    assert h100["levels"][0]["name"] == "registers"
    assert set(found["looks"]) >= {"parameter", "activation", "kv_cache", "context", "free"}


def test_a_mistake_of_ours_is_told_as_such(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ullage.verbs.ui.app.answer", lambda _query: [][0])
    answered = ask("POST", "/estimate", TRAIN)
    assert answered.status == 500 and "IndexError" in answered.json["problem"]
    assert answered.headers["cache-control"] == "no-store"


def test_a_check_of_qlora_is_refused_before_it_starts() -> None:
    lora = {"rank": 8, "targets": ["all-linear"], "is_quantized": True}
    recipe = {**TRAIN["recipe"], "lora": lora}
    with pytest.raises(SpecError, match="QLoRA is not checked here"):
        make_loop(query(recipe=recipe))
    lora["is_quantized"] = False
    assert make_loop(query(recipe=recipe))["recipe"]["lora"]["rank"] == 8


def test_the_recipes_of_the_page_are_estimated() -> None:
    recipe = {
        "length": 512, "precision": "mixed-bf16", "gradients": "fp32", "loss": "fused",
        "torch": "2.6", "compiled": True,
        "lora": {"rank": 8, "targets": ["all-linear"], "is_quantized": True, "dtype": None},
        "layout": {"sharding": "ddp", "data": 4, "buckets": "views"},
    }  # fmt: skip
    query = {"model": "llama-3.2-1b", "gpu": "h100-80gb", "recipe": recipe}
    document = answer(query)["document"]
    assert document["recipe"]["lora"]["rank"] == 8
    assert any("PyTorch 2.6, torch.compile" in line for line in document["assumptions"])


@pytest.mark.parametrize(
    "field", [{"library": "plain"}, {"loss": "fused"}, {"precision": "mixed-bf16"}]
)
def test_a_check_of_a_loop_that_its_program_does_not_have_is_refused(
    field: dict[str, str],
) -> None:
    with pytest.raises(SpecError, match="not checked here"):
        make_loop(query(recipe={**TRAIN["recipe"], **field}))
