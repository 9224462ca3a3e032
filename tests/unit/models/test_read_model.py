"""What is read from configurations: weights as transformers makes them, and errors that help."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.rows import each

from ullage.facts.families.architecture import MODEL_TYPES, read_layers, read_model
from ullage.facts.families.builtin import load_models
from ullage.facts.families.config import Config
from ullage.facts.families.layers import Attention, Cross, Encoder, Latent, Recurrent, Uncounted
from ullage.facts.families.vision import bound_part
from ullage.ground.errors import SpecError

VECTORS = json.loads(
    (Path(__file__).parents[3] / "benchmarks" / "serving" / "vectors.json").read_text()
)["models"]
LLAMA = VECTORS["llama"]["config"]
# Their publishers count the bias that balances the experts, which transformers has as a buffer.
CORRECTIONS = {"deepseek-v3": 58 * 256, "kimi-k2": 60 * 384}
SERVED = [
    name
    for name, model in load_models().items()
    if model.parameters is not None and model.config.model_type in MODEL_TYPES
]


def config(**fields: Any) -> Config:
    return Config("config.json", LLAMA | fields)


@each("name", VECTORS)
def test_weights_are_those_that_transformers_makes(name: str) -> None:
    model = VECTORS[name]
    assert read_model(Config(name, model["config"])).parameters == model["parameters"]


@each("name", SERVED)
def test_weights_are_those_that_publishers_state(name: str) -> None:
    model = load_models()[name]
    assert read_model(model.config).parameters + CORRECTIONS.get(name, 0) == model.parameters


def test_many_architectures_are_known() -> None:
    assert len(MODEL_TYPES) >= 50
    assert len(SERVED) >= 50


def test_an_attention_layer_says_what_it_sees() -> None:
    kinds = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
    layers = read_layers(config(layer_types=kinds, sliding_window=512))
    assert layers == (Attention(8, 2, 32, window=512), Attention(8, 2, 32)) * 2


def test_null_says_that_there_is_no_window() -> None:
    mistral = {"model_type": "mistral", "sliding_window": None}
    assert read_layers(config(**mistral)) == (Attention(8, 2, 32),) * 4
    without = {key: value for key, value in LLAMA.items() if key != "sliding_window"}
    layers = read_layers(Config("config.json", without | {"model_type": "mistral"}))
    assert layers == (Attention(8, 2, 32, window=4096),) * 4  # as MistralConfig has it


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("deepseek_v3", {Latent}),
        ("falcon_h1", {Attention, Recurrent}),
        ("whisper", {Encoder, Attention, Cross}),
        ("mamba", {Recurrent}),
    ],
)
def test_layers_are_of_the_architectures_kinds(name: str, kinds: set[type]) -> None:
    layers = read_layers(Config(name, VECTORS[name]["config"]))
    assert {type(layer) for layer in layers} == kinds


def test_the_text_part_of_a_larger_model_is_read() -> None:
    text = VECTORS["gemma3"]["config"]
    whole = Config("c", {"model_type": "gemma3", "text_config": text, "vision_config": {}})
    model = read_model(whole)
    assert model.layers == read_layers(Config("c", text))
    assert model.uncounted == (Uncounted("vision_config"),)


# (sizes, elements of the text's vectors, parameters of tower and projector that transformers 5.23
# makes on the meta device)
TOWERS: dict[str, tuple[dict[str, Any], int, int]] = {
    "internvl": (
        {"hidden_size": 3200, "intermediate_size": 12800, "num_hidden_layers": 45},
        8192, 5_708_504_448,
    ),
    "gemma3": (
        {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27},
        2560, 419_816_304,
    ),
    "mistral3": (
        {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24},
        5120, 438_958_080,
    ),
    "qwen2_vl": (
        {"embed_dim": 1280, "depth": 32, "mlp_ratio": 4, "hidden_size": 3584}, 3584, 675_759_104,
    ),
    "qwen3_vl": (
        {"hidden_size": 1152, "intermediate_size": 4304, "depth": 27}, 4096, 576_388_336,
    ),
    "qwen2_audio": (
        {"d_model": 1280, "encoder_layers": 32, "encoder_ffn_dim": 5120}, 4096, 642_215_936,
    ),
    "llama4": (
        {"hidden_size": 1408, "intermediate_size": 5632, "num_hidden_layers": 34},
        5120, 890_913_280,
    ),
}  # fmt: skip


@each(("sizes", "hidden", "parameters"), TOWERS.values())
def test_a_tower_of_which_the_sizes_are_read_is_bounded(
    sizes: dict[str, Any], hidden: int, parameters: int
) -> None:
    part = bound_part(Config("c", {"vision_config": sizes}), "vision_config", hidden)
    assert part.likely is not None and part.most is not None
    assert 0.68 < part.likely / parameters < 1
    assert 1.2 < part.most / parameters < 1.75


def test_a_field_about_the_checkpoint_is_no_part() -> None:
    text = VECTORS["gemma3"]["config"]
    whole = {"model_type": "gemma3", "text_config": text, "compression_config": {"bits": 4}}
    assert read_model(Config("c", whole)).uncounted == ()


def test_what_published_configurations_leave_out_is_the_librarys_default() -> None:
    # As google/gemma-3-4b-it has it: the rest is Gemma3TextConfig's.
    text = {
        "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
        "num_hidden_layers": 34, "sliding_window": 1024,
    }  # fmt: skip
    model = read_model(Config("c", {"model_type": "gemma3", "text_config": text}))
    assert model.vocab == 262_208
    assert model.layers[:6] == (Attention(8, 4, 256, window=1024),) * 5 + (Attention(8, 4, 256),)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model_type": "llama0"}, ["'model_type'", "'llama0'", "did you mean llama"]),
        ({"num_key_value_heads": 3}, ["'num_key_value_heads'", "found 3", "divisor", "8"]),
        ({"num_attention_heads": 6, "num_key_value_heads": 6}, ["'hidden_size'", "add head_dim"]),
        ({"layer_types": ["full_attention"]}, ["'layer_types'", "found 1", "num_hidden_layers=4"]),
        ({"layer_types": ["full"] * 4}, ["'layer_types'", "'full'", "full_attention"]),
        ({"layer_types": ["sliding_attention"] * 4}, ["'sliding_window'", "add it"]),
        ({"intermediate_size": None}, ["'intermediate_size'", "missing", "add it"]),
    ],
)  # fmt: skip
def test_an_error_names_the_field_and_the_remedy(fields: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        read_model(config(**fields))
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("size", "fits"), [(1, True), (2, True), (4, True), (8, True), (3, False), (16, False)]
)
def test_heads_must_be_cut_over_ranks(size: int, fits: bool) -> None:  # noqa: FBT001
    model = read_model(config())
    if fits:
        model.check_tensor_parallel(size)
        return
    with pytest.raises(SpecError, match=f"tensor_parallel={size}"):
        model.check_tensor_parallel(size)
