"""The models that are built in: each can be read, and has as many parameters as it is said to."""

from __future__ import annotations

import tomllib
from importlib import resources

import pytest
from tests.rows import each

from ullage.facts.families.builtin import _FILES, BuiltIn, find_model, load_models
from ullage.ground.errors import SpecError
from ullage.players.eager.training.architectures import MODELS, build_model
from ullage.players.eager.training.eager.arena import Arena
from ullage.players.eager.training.recipe import Recipe

ALL = list(load_models().values())
COUNTED = [
    model for model in ALL if model.parameters is not None and model.config.model_type in MODELS
]


# What transformers builds is less than what is published: a router's bias is a buffer of it, for
# each expert of 58 and 60 layers; and its T5 ties the head, whatever the file says.
NOT_BUILT = {"deepseek-v3": 58 * 256, "kimi-k2": 60 * 384, "flan-t5-xl": 32128 * 2048}


def count(built_in: BuiltIn) -> int:
    """Parameters of the model that the estimate builds, each once."""
    recipe = Recipe(length=8, image=224)
    model = build_model(Arena(), built_in.config, recipe)
    unique = {id(tensor): tensor.numel * times for tensor, times in model.parameters()}
    return sum(unique.values())


def test_there_are_at_least_forty() -> None:
    assert len(ALL) >= 40
    assert len(COUNTED) >= 40


@each("built_in", COUNTED, name=lambda built_in: built_in.name)
def test_the_shape_has_the_parameters_that_are_published(built_in: BuiltIn) -> None:
    assert count(built_in) + NOT_BUILT.get(built_in.name, 0) == built_in.parameters


@pytest.mark.parametrize("name", ["llama-3.1-8b", "LLAMA-3.1-8B", "meta-llama/Llama-3.1-8B"])
def test_a_model_is_found_by_its_name_and_by_its_repository(name: str) -> None:
    assert find_model(name).name == "llama-3.1-8b"


def test_what_is_not_there_is_named_with_what_is_close() -> None:
    with pytest.raises(SpecError, match=r"found 'llama-3.1-9b'.*did you mean .*llama-3.1-8b"):
        find_model("llama-3.1-9b")


def test_models_by_themselves_are_those_of_their_whole_files() -> None:
    folder = resources.files("ullage.facts.families")
    whole = {}
    for file in _FILES:
        whole |= tomllib.loads((folder / file).read_text("utf-8"))
    assert {model.name: (model.source, dict(model.config.fields)) for model in ALL} == {
        name: (row["source"], row["config"]) for name, row in whole.items()
    }


def test_no_model_has_the_name_of_another_repository() -> None:
    for model in ALL:
        end = model.source.lower().partition("/")[2]
        assert (
            end not in load_models() or end == model.name or find_model(end).source == model.source
        )
