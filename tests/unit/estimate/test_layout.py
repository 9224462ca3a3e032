"""Jobs on several GPUs: what a rank keeps, what it gathers, and what cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from ullage.errors import SpecError
from ullage.estimate.eager.machine import Machine
from ullage.estimate.estimate import estimate_training
from ullage.estimate.layout import Layout
from ullage.estimate.recipe import Recipe
from ullage.estimate.timeline import Moment
from ullage.estimate.training import play_training
from ullage.models.config import Config
from ullage.trace.category import Category

FIELDS = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 32000,
}
CONFIG = Config("tiny", FIELDS)


def play(layout: Layout, phase: str = "optimizer") -> Moment:
    """The peak of a phase."""
    recipe = Recipe(batch=4, length=1024, layout=layout)
    return play_training(CONFIG, recipe, Machine()).timeline.peak(phase)


def owned(layout: Layout, category: Category) -> int:
    """Requested bytes of an owner at the optimizer's step."""
    return play(layout).requested_by_category.get(category, 0)


ALONE = Layout()


@pytest.mark.parametrize("category", [Category.PARAMETER, Category.GRADIENT])
def test_ddp_keeps_everything_and_its_buckets(category: Category) -> None:
    layout = Layout(data=8)
    assert owned(layout, category) == owned(ALONE, category)
    assert owned(layout, Category.COMMUNICATION) == owned(ALONE, Category.PARAMETER)


@pytest.mark.parametrize(
    "category", [Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE]
)
def test_fsdp_keeps_an_eighth(category: Category) -> None:
    # 32000 rows, 1024, 2816, 256: all are divisible by 8, so that no shard is padded.
    assert 8 * owned(Layout(data=8, sharding="fsdp"), category) == owned(ALONE, category)


def test_zero1_shares_out_states_alone() -> None:
    layout = Layout(data=4, sharding="zero1")
    states = owned(layout, Category.OPTIMIZER_STATE)
    assert owned(layout, Category.GRADIENT) == owned(ALONE, Category.GRADIENT)
    whole = owned(ALONE, Category.OPTIMIZER_STATE)
    assert whole / 4 <= states < whole


def test_zero2_gathers_once_and_fsdp_twice() -> None:
    kept = play(Layout(data=8, sharding="zero2"), "backward").requested_bytes
    freed = play(Layout(data=8, sharding="fsdp"), "backward").requested_bytes
    assert freed < kept < play(ALONE, "backward").requested_bytes


def test_what_is_offloaded_is_in_host_memory() -> None:
    recipe = Recipe(batch=4, length=1024, layout=Layout(data=8, sharding="fsdp", offload=True))
    played = play_training(CONFIG, recipe, Machine())
    at_step = played.timeline.peak("optimizer").requested_by_category
    assert at_step.get(Category.OPTIMIZER_STATE, 0) == 0
    each = owned(Layout(data=8, sharding="fsdp"), Category.PARAMETER)
    assert played.host_bytes == 4 * each  # shards, their gradients, two moments


def test_tensor_parallel_ranks_hold_the_model_together() -> None:
    norms = 2 * 1024 * 2 * 8 + 1024 * 2
    embedding = 32000 * 1024 * 2
    whole = owned(ALONE, Category.PARAMETER)
    each = owned(Layout(tensor=4), Category.PARAMETER)
    assert 4 * (each - norms - embedding) == whole - norms - embedding


def test_stages_hold_the_model_together() -> None:
    stages = [
        owned(Layout(pipeline=3, micro_batches=6, stage=stage), Category.PARAMETER)
        for stage in range(3)
    ]
    assert sum(stages) == owned(ALONE, Category.PARAMETER)


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_a_stage_of_a_pipeline_can_be_sharded(stage: int) -> None:
    def owns(**more: Any) -> int:
        layout = Layout(pipeline=4, micro_batches=4, stage=stage, **more)
        return owned(layout, Category.PARAMETER)

    assert 2 * owns(data=2, sharding="fsdp") == owns()


@pytest.mark.parametrize(("schedule", "in_flight"), [("1f1b", [4, 3, 2, 1]), ("gpipe", [8] * 4)])
def test_micro_batches_in_flight(schedule: str, in_flight: list[int]) -> None:
    layouts = [
        Layout(pipeline=4, micro_batches=8, schedule=schedule, stage=stage) for stage in range(4)
    ]
    assert [one.in_flight for one in layouts] == in_flight


def test_the_stage_that_needs_most_is_named() -> None:
    found = estimate_training(
        CONFIG, Recipe(batch=4, length=1024, layout=Layout(pipeline=4, micro_batches=8))
    )
    peaks = [
        play(Layout(pipeline=4, micro_batches=8, stage=stage), "backward").allocated_bytes
        for stage in range(4)
    ]
    assert found.recipe.layout.stage == peaks.index(max(peaks))


@pytest.mark.parametrize(
    ("fields", "layout", "message"),
    [
        (FIELDS, Layout(tensor=8), "'num_key_value_heads': found 4, which tensor 8"),
        (FIELDS | {"num_hidden_layers": 2}, Layout(pipeline=4), "'num_hidden_layers': found 2"),
        (FIELDS | {"model_type": "gpt2"}, Layout(tensor=2), "cannot divide"),
    ],
)
def test_what_cannot_be_divided_is_told(
    fields: dict[str, object], layout: Layout, message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        estimate_training(Config("tiny", fields), Recipe(length=64, layout=layout))


@pytest.mark.parametrize(
    "wrong",
    [{"data": 0}, {"sharding": "zero9"}, {"schedule": "x"}, {"offload": True}, {"stage": 1}],
)
def test_a_layout_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(SpecError, match=next(iter(wrong))):
        Layout(**wrong)  # type: ignore[arg-type]
