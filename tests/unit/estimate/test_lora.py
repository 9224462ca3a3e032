"""Adapters: what peft puts them on, and how many parameters that trains.

peft_counts.json has what peft 0.21.2 counts with transformers 5.23, on the meta device; by night
tests/phantom/test_stacks.py asks them anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.accuracy.estimate.cases_decoders import MIXTRAL, QWEN3_30B
from tests.rows import each

from ullage.facts.families.builtin import find_model, load_models
from ullage.facts.families.config import Config
from ullage.ground.errors import SpecError
from ullage.log.category import Category
from ullage.players.eager.training.architectures import MODELS, build_model
from ullage.players.eager.training.eager.arena import Arena
from ullage.players.eager.training.eager.machine import Machine
from ullage.players.eager.training.eager.module import Module
from ullage.players.eager.training.loop import Played, play_training
from ullage.players.eager.training.lora import QuantizedLinear, add_adapters
from ullage.players.eager.training.recipe import Lora, Recipe

ROWS: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).with_name("peft_counts.json")).read_text(encoding="utf-8")
)
COUNTED = {name: row for name, row in ROWS.items() if isinstance(row["trained"], int)}
# timm's and diffusers' models are none of transformers; peft has no special case for them.
OTHERS = ("resnet", "UNet", "Autoencoder", "DiT")
SEES = ("vit", "clip")


def play(model: str | dict[str, Any], lora: Lora, **recipe: Any) -> Played:
    """A step with adapters; a model is one that is built in, or has its fields here."""
    config = Config("model", model) if isinstance(model, dict) else find_model(model).config
    sees, reads = config.model_type in SEES, config.model_type != "vit"
    sizes = {"length": 8 if reads else None, "image": 224 if sees else None}
    return play_training(config, Recipe(**sizes | recipe, lora=lora), Machine())


def lora(targets: str | list[str], **fields: Any) -> Lora:
    return Lora(targets=(targets,) if isinstance(targets, str) else tuple(targets), **fields)


def test_every_model_of_transformers_that_is_built_in_is_counted() -> None:
    models = {
        name
        for name, model in load_models().items()
        if model.config.model_type in MODELS and not model.config.model_type.startswith(OTHERS)
    }
    assert models == {name for name, row in ROWS.items() if row["model"] == name}


@each("name", COUNTED)
def test_as_many_parameters_are_trained_as_peft_trains(name: str) -> None:
    row = COUNTED[name]
    assert play(row["model"], lora(row["targets"])).num_trainable == row["trained"]


@each("name", ROWS.keys() - COUNTED.keys())
def test_what_peft_refuses_is_refused(name: str) -> None:
    assert "without also targeting" in ROWS[name]["trained"]
    with pytest.raises(SpecError, match="in one tensor"):
        play(ROWS[name]["model"], lora(ROWS[name]["targets"]))


def count_quantized(module: Module) -> int:
    """Linear layers in NF4, as many as the real model has."""
    inside = sum(count * count_quantized(child) for _, child, count in module.children())
    return inside + isinstance(module, QuantizedLinear)


# Of transformers' get_keys_to_not_convert: all but what scores the words; vit's classifier is none.
@pytest.mark.parametrize(
    ("name", "count"),
    [("bert-base", 12 * 6 + 1), ("all-minilm-l6", 6 * 6 + 1), ("vit-base", 12 * 6 + 1),
     ("mixtral-8x7b", 32 * 4)],
)  # fmt: skip
def test_the_layer_that_scores_words_is_not_quantized(name: str, count: int) -> None:
    arena, config = Arena(Machine()), find_model(name).config
    recipe = Recipe(length=8, lora=lora("all-linear", is_quantized=True))
    model = build_model(arena, config, recipe)
    add_adapters(arena, model, recipe)
    assert count_quantized(model) == count


def test_adapters_of_stacked_experts_have_no_dropout() -> None:
    with pytest.raises(SpecError, match=r"lora dropout: found 0\.1, expected 0"):
        play(MIXTRAL, lora("all-linear", dropout=0.1))


def test_the_loss_does_not_see_a_pooler() -> None:
    """Its adapter is trained, as peft says it, and has neither a gradient nor states."""
    played = play("all-minilm-l6", lora("all-linear"), batch=2)
    sizes = played.totals.peaks["optimizer"].requested_by_category
    reached = 4 * (played.num_trainable - 16 * (384 + 384))  # float32
    assert sizes[Category.GRADIENT] == reached
    assert sizes[Category.OPTIMIZER_STATE] == 2 * reached  # AdamW's


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_the_sum_of_experts_and_adapters_is_kept_for_backward(checkpointing: str) -> None:
    """It is a tensor as large as the experts; a checkpoint makes it again."""
    layers = 8
    model = QWEN3_30B | {"num_hidden_layers": layers}
    some = play(model, lora(["q_proj"]), checkpointing=checkpointing).totals.peak
    every = play(model, lora("all-linear"), checkpointing=checkpointing).totals.peak
    experts = 2 * 128 * 3 * 768 * 2048  # bfloat16
    more = every.requested_by_category[Category.ACTIVATION]
    more -= some.requested_by_category[Category.ACTIVATION]
    kept = {"none": layers, "full": 1}[checkpointing]
    # At the peak the last layer's way back, a third of its experts, is through.
    assert kept - 1 / 3 < more / experts < kept + 0.1
