"""Decoder language models: their parameters, their peaks, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from benchmarks.accuracy.estimate import cases_decoders as published
from benchmarks.accuracy.estimate.compare import Row, compare, make_recipe
from tests.rows import each

from ullage.facts.families.config import Config
from ullage.facts.gpus.catalog import find_gpu
from ullage.ground.errors import SpecError
from ullage.players.eager.training.eager import module
from ullage.players.eager.training.eager.machine import Machine
from ullage.players.eager.training.estimate import estimate_training
from ullage.players.eager.training.loop import play_training
from ullage.players.eager.training.recipe import Recipe

VECTORS: dict[str, dict[str, Any]] = {
    name: vector
    for name, vector in json.loads(
        (Path(__file__).parent / "phantom_vectors.json").read_text()
    ).items()
    if vector["family"] == "decoders"
}
# What its layers share is made again for the backward pass, and 8 MiB of that are said to be
# temporaries where the phantom says activations; the sum agrees.
OTHER_OWNER = "Gemma-3n, small, checkpoints"
SMALL = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 9,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000,
}  # fmt: skip

# What transformers 5.23 counts: sum(p.numel() for p in model.parameters()) on the meta device.
COUNTS = [
    (published.GPT2, {}, 124_439_808),
    (published.GPT2, {"n_embd": 1600, "n_layer": 48, "n_head": 25}, 1_557_611_200),
    (published.OPT_1_3B, {}, 1_315_758_080),
    (published.PYTHIA_1_4B, {}, 1_414_647_808),
    (published.LLAMA_1B, {}, 1_235_814_400),
    (published.LLAMA_8B, {}, 8_030_261_248),
    (
        published.LLAMA_8B,
        {
            "hidden_size": 16384,
            "intermediate_size": 53248,
            "num_hidden_layers": 126,
            "num_attention_heads": 128,
        },
        405_853_388_800,
    ),
    (published.TINYLLAMA, {}, 1_100_048_384),
    (published.MISTRAL_7B, {}, 7_241_732_096),
    (published.QWEN2_0_5B, {}, 494_032_768),
    (published.QWEN2_7B, {}, 7_615_616_512),
    (published.QWEN3_0_6B, {}, 596_049_920),
    (published.QWEN3_8B, {}, 8_190_735_360),
    (published.GEMMA2_2B, {}, 2_614_341_888),
    (published.GEMMA3_1B, {}, 999_885_952),
    (published.PHI3_MINI, {}, 3_821_079_552),
    (published.GRANITE_2B, {}, 2_533_531_648),
    (published.OLMO2_7B, {}, 7_298_617_344),
    (published.SMOLLM3_3B, {}, 3_075_098_624),
    (published.MIXTRAL, {}, 46_702_792_704),
    (published.QWEN3_30B, {}, 30_532_122_624),
    (published.DEEPSEEK_V3, {}, 671_026_404_352),
    (published.GPT_OSS_20B, {}, 20_914_757_184),
    (
        published.GPT_OSS_20B,
        {"num_hidden_layers": 36, "num_local_experts": 128},
        116_829_156_672,
    ),
    (published.LLAMA4_SCOUT, {}, 107_769_861_120),
    (published.QWEN3_5_9B, {}, 8_953_803_264),
    (published.QWEN3_5_35B, {}, 34_660_610_688),
    (published.GEMMA3N_E4B, {}, 6_835_235_568),
    (published.GEMMA4_E2B, {}, 4_621_490_944),
    (published.GEMMA4_26B, {}, 25_233_141_760),
    (published.DEEPSEEK_V3_2, {}, 671_877_929_216),
    (published.GLM_5, {}, 743_911_199_232),
]


def play(fields: dict[str, Any], **recipe: Any) -> Any:
    return play_training(Config("small", fields), Recipe(**{"length": 64} | recipe), Machine())


@each(("config", "changes", "count"), COUNTS)
def test_parameters_are_as_many_as_transformers_counts(
    config: dict[str, Any], changes: dict[str, Any], count: int
) -> None:
    assert play(config | changes, length=8).num_parameters == count


def test_of_a_model_of_several_parts_the_text_part_is_trained() -> None:
    fields = {"model_type": "gemma3", "text_config": published.GEMMA3_1B, "vision_config": {}}
    found = estimate_training(Config("several", fields), Recipe(length=64))
    assert found.num_parameters == 999_885_952
    assert found.assumptions[-1].endswith("parts that are not counted: vision_config")


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return [compare(name, vector) for name, vector in VECTORS.items()]


def test_every_case_has_been_run() -> None:
    assert {case.name for case in published.CASES} == set(VECTORS)


def test_parameters_gradients_and_states_agree_with_the_phantom_to_the_byte(
    rows: list[Row],
) -> None:
    assert [row.name for row in rows if not row.is_exact] == []


def test_what_is_asked_for_at_the_peak_agrees_with_the_phantom() -> None:
    for name, vector in VECTORS.items():
        estimate = estimate_training(
            Config(name, vector["config"]), make_recipe(vector["recipe"]), find_gpu(vector["gpu"])
        )
        expected = vector["phantom"]["peak_requested_bytes"]
        assert estimate.peak.requested_bytes == pytest.approx(expected, rel=0.002), name


def test_peak_and_activations_are_within_the_bounds(rows: list[Row]) -> None:
    for errors in (
        [abs(row.peak_error) for row in rows],
        [abs(row.activation_error) for row in rows if row.name != OTHER_OWNER],
    ):
        assert median(errors) < 0.03
        assert max(errors) < 0.08


def test_the_interval_holds_what_the_phantom_allocates(rows: list[Row]) -> None:
    assert sum(row.is_covered for row in rows) >= 0.95 * len(rows)


@pytest.mark.parametrize("kind", ["none", "full"])
@pytest.mark.parametrize(
    "config",
    [
        SMALL,
        SMALL | {"model_type": "gemma3_text", "num_hidden_layers": 26, "sliding_window": 16},
        SMALL | {"model_type": "smollm3", "num_hidden_layers": 18},
        SMALL | {"model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2},
        published.DEEPSEEK_V3 | {"num_hidden_layers": 12},
    ],
    ids=lambda config: config["model_type"],
)
def test_layers_that_are_counted_come_to_the_same_as_layers_that_are_played(
    config: dict[str, Any], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = play(config, checkpointing=kind).totals.peak
    monkeypatch.setattr(module, "_PLAYED", 1000)
    assert play(config, checkpointing=kind).totals.peak == counted


def test_a_mask_of_a_window_is_kept_by_every_layer() -> None:
    base = SMALL | {"model_type": "mistral", "num_hidden_layers": 3}
    wide = play(base | {"sliding_window": 512}, length=512).totals.peak
    narrow = play(base | {"sliding_window": 256}, length=512).totals.peak
    mask = 512 * 512 * 2  # bfloat16, for each layer
    assert narrow.requested_bytes - wide.requested_bytes > 3 * mask


def test_attention_by_hand_keeps_all_scores() -> None:
    fused = play(SMALL, length=512).totals.peak
    by_hand = play(SMALL, length=512, attention="eager").totals.peak
    scores = 4 * 512 * 512 * (4 + 2)  # heads; softmax in float32, and cast back
    assert by_hand.requested_bytes - fused.requested_bytes > 9 * scores


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"hidden_size": None}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"model_type": "llama7"}, "model_type"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused_by_its_field(
    changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(SpecError, match=field):
        play(SMALL | changes)


def test_a_sample_longer_than_the_learned_positions_is_refused() -> None:
    with pytest.raises(SpecError, match=r"n_positions.*1024.*2000"):
        play(published.GPT2, length=2000)


def test_more_experts_chosen_than_there_are_is_refused() -> None:
    with pytest.raises(SpecError, match="num_experts_per_tok"):
        play(published.MIXTRAL | {"num_experts_per_tok": 9})
