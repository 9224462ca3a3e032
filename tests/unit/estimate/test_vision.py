"""Models of images, sound and sentences against what the phantom recorded of the real programs."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from benchmarks.accuracy.estimate.case import Case
from benchmarks.accuracy.estimate.cases_vision import CASES, CONFIGS
from benchmarks.accuracy.estimate.compare import Row, compare, make_recipe
from tests.rows import each

from ullage.facts.families.config import Config
from ullage.facts.gpus.catalog import find_gpu
from ullage.ground.errors import SpecError
from ullage.players.eager.training.architectures import build_model
from ullage.players.eager.training.eager.arena import Arena
from ullage.players.eager.training.eager.convolution import convolve
from ullage.players.eager.training.eager.machine import Machine
from ullage.players.eager.training.eager.module import parameter
from ullage.players.eager.training.eager.tensor import BFLOAT16, empty
from ullage.players.eager.training.estimate import estimate_training
from ullage.players.eager.training.loop import play_training
from ullage.players.eager.training.recipe import Recipe

VECTORS: dict[str, dict[str, Any]] = {
    name: vector
    for name, vector in json.loads(
        Path(__file__).with_name("phantom_vectors.json").read_text(encoding="utf-8")
    ).items()
    if vector["family"] == "vision"
}
PEAK_ERROR = 0.002

# What the libraries count themselves (transformers 5.23, diffusers 0.42, timm 1.0, on torch's meta
# device).
PARAMETERS = {
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "vit-base": 86_567_656,
    "vit-large": 304_326_632,
    "bert-base": 109_514_298,
    "roberta-base": 124_697_433,
    "bge-large": 335_141_888,
    "t5-small": 60_506_624,
    "flan-t5-large": 750_251_008,
    "whisper-small": 241_734_912,
    "whisper-large-v3": 1_543_490_560,
    "sdxl-unet": 2_567_463_684,
    "sd15-unet": 859_520_964,
    "sd-vae": 83_653_863,
    "dit-xl-2": 749_826_464,
    "clip-vit-l14": 427_616_513,
    "mamba2-130m": 128_989_632,
}


def config_of(model: str, **changed: Any) -> Config:
    """A published configuration, with fields changed."""
    return Config(model, CONFIGS[model] | changed)


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return [compare(name, vector) for name, vector in VECTORS.items()]


def test_every_case_has_been_run() -> None:
    assert {case.name: dict(case.config) for case in CASES} == {
        name: vector["config"] for name, vector in VECTORS.items()
    }


def test_parameters_gradients_and_states_agree_with_the_phantom_to_the_byte(
    rows: list[Row],
) -> None:
    assert [row.name for row in rows if row.counted is None or not row.is_exact] == []


@each("name", VECTORS)
def test_what_is_asked_for_at_the_peak_agrees_with_the_phantom(name: str) -> None:
    vector = VECTORS[name]
    estimate = estimate_training(
        Config(name, vector["config"]), make_recipe(vector["recipe"]), find_gpu(vector["gpu"])
    )
    expected = vector["phantom"]["peak_requested_bytes"]
    assert estimate.peak.requested_bytes == pytest.approx(expected, rel=PEAK_ERROR)


def test_peak_and_activations_are_within_the_bounds(rows: list[Row]) -> None:
    for errors in (
        [abs(row.peak_error) for row in rows],
        [abs(row.activation_error) for row in rows],
    ):
        assert median(errors) < 0.01
        assert max(errors) < 0.05


@pytest.mark.parametrize("case", [case for case in CASES if case.config.get("architecture")])
def test_the_ends_of_the_workspaces_enclose_what_was_recorded(case: Case) -> None:
    recorded = VECTORS[case.name]["phantom"]["peak_requested_bytes"]
    gpu = find_gpu(case.gpu)
    machine = Machine(gpu.compute_capability, multiprocessors=gpu.num_multiprocessors)
    totals = play_training(Config(case.name, case.config), case.recipe, machine).totals
    low, high = totals.low_bytes, totals.high_bytes
    assert low <= recorded * (1 + 1e-5)
    assert recorded * (1 - 1e-5) <= high
    assert low < high


@each(("model", "expected"), PARAMETERS.items())
def test_a_published_model_has_its_parameters(model: str, expected: int) -> None:
    built = build_model(Arena(), config_of(model), Recipe(length=64, image=224))
    unique = {id(tensor): tensor.numel * count for tensor, count in built.parameters()}
    assert sum(unique.values()) == expected


@pytest.mark.parametrize(
    ("model", "recipe", "message"),
    [
        ("vit-base", Recipe(image=256), "image: found 256, expected 224"),
        ("resnet50", Recipe(), "image: not given"),
        ("dit-xl-2", Recipe(image=512), "image: found 512, expected 256"),
        ("sd15-unet", Recipe(image=100), "image: found 100, expected a multiple of 8"),
        ("whisper-small", Recipe(length=500), "length: found 500, expected at most 448"),
        ("bert-base", Recipe(length=600), "length: found 600, expected at most 512"),
        ("clip-vit-l14", Recipe(image=224, length=80), "length: found 80, expected at most 77"),
    ],
)
def test_what_the_model_cannot_read_is_refused(model: str, recipe: Recipe, message: str) -> None:
    built = build_model(Arena(), config_of(model), recipe)
    with pytest.raises(SpecError, match=message):
        built.inputs(Arena(), recipe)


@pytest.mark.parametrize(
    ("model", "field", "value"),
    [
        ("sd15-unet", "up_block_types", ["AttnUpBlock2D"] * 4),
        ("sd15-unet", "resnet_time_scale_shift", "scale_shift"),
        ("bert-base", "architectures", ["BertForSequenceClassification"]),
        ("bert-base", "hidden_act", "mish"),
        ("clip-vit-l14", "text_config", None),
        ("mamba2-130m", "num_heads", 20),
    ],
)
def test_what_is_not_known_is_refused_by_its_field(model: str, field: str, value: Any) -> None:
    config = config_of(model, **{field: value})
    with pytest.raises(SpecError, match=f"field '{field}': found"):
        build_model(Arena(), config, Recipe(length=64, image=512))


def test_a_part_of_clip_that_says_nothing_is_as_the_library_has_it() -> None:
    config = config_of("clip-vit-l14", text_config={}, vision_config={}, projection_dim=512)
    built = build_model(Arena(), config, Recipe(length=64, image=224))
    unique = {id(tensor): tensor.numel * count for tensor, count in built.parameters()}
    assert sum(unique.values()) == 151_277_313  # clip-vit-base-patch32


def test_checkpoints_keep_less_and_give_the_same_gradients() -> None:
    sizes = {}
    for checkpointing in ("none", "full"):
        recipe = Recipe(batch=4, image=224, checkpointing=checkpointing)
        totals = play_training(config_of("resnet50"), recipe, Machine()).totals
        sizes[checkpointing] = totals.peak.requested_bytes
    assert sizes["full"] < 0.8 * sizes["none"]


def test_channels_that_lie_last_need_no_copy_of_the_picture() -> None:
    arena = Arena()
    x = empty(arena, (2, 64, 32, 32), BFLOAT16)
    weight = parameter(arena, 64, 64, 3, 3, dtype=BFLOAT16)
    convolve(x, weight, padding=1)
    in_order = max(arena.log.requested[2:])
    x.lay_out(is_permuted=True)
    begin = len(arena.log.requested)
    convolve(x, weight, padding=1)
    assert in_order > 2 * x.nbytes  # copies of x and of the result
    assert max(arena.log.requested[begin:]) == x.nbytes
