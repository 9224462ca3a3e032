"""A played training loop: what must hold for every model and recipe."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ullage.facts.families.config import Config
from ullage.facts.gpus.catalog import find_gpu
from ullage.ground.errors import SpecError
from ullage.log.category import Category
from ullage.players.eager.training.eager import module
from ullage.players.eager.training.eager.machine import Machine
from ullage.players.eager.training.estimate import TrainingEstimate, estimate_training
from ullage.players.eager.training.loop import Played, play_training
from ullage.players.eager.training.recipe import Lora, Recipe
from ullage.players.eager.training.totals import Moment, find_stretches

LLAMA = {
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 5,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 8000,
    "max_position_embeddings": 4096,
}
OTHERS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "gpt2": {
        "model_type": "gpt2",
        "n_embd": 256,
        "n_layer": 5,
        "n_head": 4,
        "n_positions": 512,
        "vocab_size": 1000,
    },
    "gemma3": {
        **LLAMA,
        "model_type": "gemma3_text",
        "head_dim": 64,
        "sliding_window": 64,
    },
    "qwen3": {**LLAMA, "model_type": "qwen3", "head_dim": 64},
}
RECIPES = {
    "plain": {},
    "checkpointed": {"checkpointing": "full"},
    "every third": {"checkpointing": 3},
    "selective": {"checkpointing": "selective"},
    "autocast": {"precision": "amp-bf16", "optimizer": "adafactor"},
    "accumulated": {"accumulation": 4, "optimizer": "adamw-loop"},
    "in backward": {"steps_in_backward": True, "optimizer": "adafactor-transformers"},
    "adapted": {"lora": Lora(rank=8, targets=("all-linear",)), "optimizer": "adamw-8bit"},
    "quantized": {"lora": Lora(rank=8, targets=("all-linear",), is_quantized=True)},
}


def play(fields: dict[str, Any] = LLAMA, **changes: Any) -> Played:
    """A small model's step."""
    recipe = Recipe(**{"batch": 2, "length": 128, **changes})
    return play_training(Config("model", fields), recipe, Machine())


def estimate(**changes: Any) -> TrainingEstimate:
    """A small Llama on an H100."""
    recipe = Recipe(**{"batch": 2, "length": 128, **changes})
    return estimate_training(Config("model", LLAMA), recipe, find_gpu("h100-80gb"))


def figures(moment: Moment) -> tuple[Any, ...]:
    """What is compared of a moment: a category of which nothing is left is none."""
    sizes = {name: count for name, count in moment.requested_by_category.items() if count}
    return moment.allocated_bytes, moment.requested_bytes, sizes


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
@pytest.mark.parametrize("fields", OTHERS.values(), ids=OTHERS)
def test_repeating_the_middle_layer_is_the_same_as_playing_all_layers(
    fields: dict[str, Any], recipe: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = {**fields, "num_hidden_layers": 26, "n_layer": 26}
    short = play(deep, **recipe)
    monkeypatch.setattr(module, "_PLAYED", 1000)
    long = play(deep, **recipe)
    assert long.log.position > short.log.position
    assert short.num_parameters == long.num_parameters
    assert short.num_trainable == long.num_trainable
    for phase in short.totals.peaks:
        assert figures(short.totals.peaks[phase]) == figures(long.totals.peaks[phase]), phase
    assert figures(short.totals.end) == figures(long.totals.end)


@pytest.mark.parametrize(
    ("keys", "pieces"),
    [
        ("a", "1a"),
        ("aaa", "1a 1a 1a"),
        ("aaaaaa", "1a 4a 1a"),
        ("abababab", "1a 1b 2ab 1a 1b"),
        ("ddmmmmm", "1d 1d 1m 3m 1m"),
        ("ssgssgssgss", "1s 1s 1g 2ssg 1s 1s"),
        ("abcabd", "1a 1b 1c 1a 1b 1d"),
    ],
)
def test_layers_are_played_once_for_each_place_in_their_pattern(keys: str, pieces: str) -> None:
    found = list(module._find_pieces(keys))
    assert " ".join(f"{times}{''.join(piece)}" for times, piece in found) == pieces
    assert "".join("".join(piece) * times for times, piece in found) == keys


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_nothing_is_left_of_a_step_but_what_a_program_keeps(recipe: dict[str, Any]) -> None:
    left = play(**recipe).totals.end.requested_by_category
    assert not left.get(Category.WORKSPACE)
    # The loss, and with adapters on checkpointed layers nothing else: a few numbers.
    left_bytes = left.get(Category.ACTIVATION, 0) + left.get(Category.TEMPORARY, 0)
    assert left_bytes <= 8


@given(
    batch=st.integers(1, 6),
    length=st.sampled_from([64, 100, 257]),
    recipe=st.sampled_from(list(RECIPES.values())),
)
@settings(max_examples=25, deadline=None)
def test_parts_add_up_to_the_whole_at_every_peak(
    batch: int, length: int, recipe: dict[str, Any]
) -> None:
    answer = estimate(batch=batch, length=length, **recipe)
    for moment in (answer.peak, *answer.peaks.values()):
        assert sum(moment.by_category.values()) == moment.allocated_bytes
        assert sum(moment.requested_by_category.values()) == moment.requested_bytes
        assert moment.requested_bytes <= moment.allocated_bytes
        assert all(count >= 0 for count in moment.by_category.values())
    assert answer.bytes == sum(term.bytes for term in answer.terms)
    assert all(0 <= term.low_bytes <= term.bytes <= term.high_bytes for term in answer.terms)
    assert answer.peak.allocated_bytes == max(
        moment.allocated_bytes for moment in answer.peaks.values()
    )
    assert answer.bytes >= answer.peak.allocated_bytes


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_more_samples_never_need_less(recipe: dict[str, Any]) -> None:
    peaks = [play(batch=batch, **recipe).totals.peak.allocated_bytes for batch in (1, 2, 5, 9)]
    assert peaks == sorted(peaks)


def test_a_stretch_leads_to_the_next() -> None:
    log = play(checkpointing=2).log
    stretches = list(find_stretches(log))
    assert stretches[0].begin == 0
    assert stretches[-1].end == log.position
    assert all(before.end == after.begin for before, after in pairwise(stretches))


def test_checkpointing_orders_the_ways_by_what_they_keep() -> None:
    peaks = [
        play(length=2048, checkpointing=way).totals.peaks["backward"].allocated_bytes
        for way in ("full", "selective", 2, "none")
    ]
    assert peaks[0] < peaks[1] < peaks[3]
    assert peaks[0] < peaks[2] < peaks[3]


def test_gradients_are_there_in_the_forward_pass_of_a_later_micro_batch() -> None:
    once, twice = play(accumulation=1), play(accumulation=2)
    gradient_bytes = twice.totals.peaks["forward"].requested_by_category[Category.GRADIENT]
    assert gradient_bytes == 2 * twice.num_trainable
    assert not once.totals.peaks["forward"].requested_by_category.get(Category.GRADIENT)


def test_a_step_in_the_backward_pass_leaves_no_gradient() -> None:
    played = play(steps_in_backward=True)
    assert not played.totals.end.requested_by_category.get(Category.GRADIENT)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"precision": "int4"}, "precision"),
        ({"optimizer": "newton"}, "optimizer"),
        ({"checkpointing": "some"}, "checkpointing"),
        ({"checkpointing": 0}, "checkpointing"),
        ({"batch": 0}, "batch"),
        ({"length": None}, "length"),
        ({"steps_in_backward": True, "accumulation": 2}, "steps_in_backward"),
        ({"lora": Lora(targets=("nowhere",))}, "lora targets"),
    ],
)
def test_what_cannot_be_is_refused_by_name(changes: dict[str, Any], name: str) -> None:
    with pytest.raises(SpecError, match=name):
        play(**changes)
