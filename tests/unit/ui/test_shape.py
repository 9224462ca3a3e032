"""Depth and width of configurations."""

from __future__ import annotations

import pytest
from tests.rows import each

from ullage.facts.families.builtin import load_models
from ullage.facts.families.config import Config
from ullage.ground.errors import SpecError
from ullage.verbs.ui.shape import read_shape, reshape

LLAMA = Config(
    "llama",
    {
        "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
        "max_position_embeddings": 8192, "layer_types": ["full", "full", "full", "slide"] * 8,
    },
)  # fmt: skip


def test_the_shape_of_a_language_model() -> None:
    shape = read_shape(LLAMA)
    assert (shape.depth, shape.width, shape.width_step) == (32, 4096, 512)
    assert shape.reads_tokens and not shape.sees_images and shape.longest == 8192


def test_half_the_width_has_half_the_heads_each_as_wide() -> None:
    fields = reshape(LLAMA, width=2048).fields
    assert fields["hidden_size"] == 2048 and fields["intermediate_size"] == 7168
    assert fields["num_attention_heads"] == 16 and fields["num_key_value_heads"] == 4
    assert fields["vocab_size"] == 128256 and fields["max_position_embeddings"] == 8192


def test_lists_of_layers_go_on_as_they_began() -> None:
    assert reshape(LLAMA, depth=6).fields["layer_types"] == ["full"] * 3 + ["slide", "full", "full"]
    longer = reshape(LLAMA, depth=36).fields["layer_types"]
    assert longer[32:] == ["full", "full", "full", "slide"]


def test_one_key_for_all_heads_stays_one() -> None:
    config = Config("mqa", {**LLAMA.fields, "num_key_value_heads": 1})
    assert read_shape(config).width_step == 128
    assert reshape(config, width=1024).fields["num_key_value_heads"] == 1


def test_what_is_within_a_larger_model_is_turned() -> None:
    config = Config("vlm", {"text_config": LLAMA.fields, "image_size": 448})
    assert read_shape(config).depth == 32 and read_shape(config).sees_images
    assert reshape(config, depth=4).fields["text_config"]["num_hidden_layers"] == 4


@pytest.mark.parametrize("width", [0, -512, 100, 4000])
def test_a_width_between_the_steps_is_refused(width: int) -> None:
    with pytest.raises(SpecError, match="multiple of 512"):
        reshape(LLAMA, width=width)


def test_what_has_no_layers_cannot_be_deeper() -> None:
    with pytest.raises(SpecError, match="no number of layers"):
        reshape(Config("resnet50", {"architecture": "resnet50"}), depth=3)


@each("name", load_models())
def test_a_built_in_model_as_it_is_stays_as_it_is(name: str) -> None:
    config = load_models()[name].config
    shape = read_shape(config)
    assert shape.reads_tokens or shape.sees_images
    assert reshape(config, depth=shape.depth, width=shape.width) == config
