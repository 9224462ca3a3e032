"""Jobs on several GPUs: what a rank keeps, what it gathers, and what cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from ullage.facts.families.config import Config
from ullage.ground.errors import SpecError
from ullage.log.category import Category
from ullage.players.eager.training.eager.machine import Machine
from ullage.players.eager.training.estimate import estimate_training
from ullage.players.eager.training.layout import Layout
from ullage.players.eager.training.loop import play_training
from ullage.players.eager.training.recipe import Recipe
from ullage.players.eager.training.totals import Moment

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
    return play_training(CONFIG, recipe, Machine()).totals.peaks[phase]


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
    gathered_bytes = play(Layout(data=8, sharding="zero2"), "backward").requested_bytes
    freed = play(Layout(data=8, sharding="fsdp"), "backward").requested_bytes
    assert freed < gathered_bytes < play(ALONE, "backward").requested_bytes


def test_what_is_offloaded_is_in_host_memory() -> None:
    recipe = Recipe(batch=4, length=1024, layout=Layout(data=8, sharding="fsdp", offload=True))
    played = play_training(CONFIG, recipe, Machine())
    at_step = played.totals.peaks["optimizer"].requested_by_category
    assert at_step.get(Category.OPTIMIZER_STATE, 0) == 0
    each = owned(Layout(data=8, sharding="fsdp"), Category.PARAMETER)
    assert played.host_bytes == 4 * each  # shards, their gradients, two moments


def test_tensor_parallel_ranks_hold_the_model_together() -> None:
    norms = 2 * 1024 * 2 * 8 + 1024 * 2
    embedding = 32000 * 1024 * 2
    whole = owned(ALONE, Category.PARAMETER)
    each = owned(Layout(tensor=4), Category.PARAMETER)
    assert 4 * (each - norms - embedding) == whole - norms - embedding


def test_sequence_parallel_ranks_divide_the_embedding_and_the_residuals() -> None:
    plain, divided = (Layout(tensor=4, sequence=sequence) for sequence in (False, True))
    saved = owned(plain, Category.PARAMETER) - owned(divided, Category.PARAMETER)
    assert saved == 32000 * 1024 * 2 * 3 // 4
    activation_bytes = [
        play(layout, "backward").requested_by_category[Category.ACTIVATION]
        for layout in (plain, divided)
    ]
    assert activation_bytes[1] < 0.8 * activation_bytes[0]


def test_the_gradient_of_a_divided_embedding_has_all_rows() -> None:
    layout = Layout(tensor=4, sequence=True)
    more = owned(layout, Category.GRADIENT) - owned(layout, Category.PARAMETER)
    assert more == 32000 * 1024 * 2 * 3 // 4


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_context_parallel_ranks_keep_what_their_part_of_the_sequence_keeps(ranks: int) -> None:
    def kept(layout: Layout, length: int) -> int:
        played = play_training(CONFIG, Recipe(length=length, layout=layout), Machine())
        return played.totals.peaks["backward"].requested_by_category[Category.ACTIVATION]

    # Beside it: what is merged in float32 is not laid out as the output projection reads it.
    copies = 8 * 512 * 1024 * 2
    assert kept(Layout(context=ranks), 512 * ranks) == kept(ALONE, 512) + copies


def test_context_parallel_ranks_share_out_parameters() -> None:
    alone = owned(ALONE, Category.PARAMETER)
    assert 8 * owned(Layout(data=2, context=4, sharding="fsdp"), Category.PARAMETER) == alone


MIXTURE = Config(
    "mixture", FIELDS | {"model_type": "mixtral", "num_local_experts": 8, "sliding_window": None}
)


@pytest.mark.parametrize(("data", "expert"), [(4, 2), (4, 4), (8, 4)])
def test_expert_parallel_ranks_hold_the_model_together(data: int, expert: int) -> None:
    layout = Layout(data=data, expert=expert, sharding="fsdp")
    estimate = estimate_training(MIXTURE, Recipe(length=64, layout=layout))
    assert data * estimate.num_rank_parameters == estimate.num_parameters
    divided = estimate.peak.requested_by_category[Category.OPTIMIZER_STATE]
    assert divided == pytest.approx(4 * estimate.num_rank_parameters, rel=1e-6)


def test_experts_that_no_other_rank_holds_are_not_gathered() -> None:
    def gathers(expert: int) -> set[int]:
        layout = Layout(data=8, expert=expert, sharding="fsdp")
        log = play_training(MIXTURE, Recipe(length=64, layout=layout), Machine()).log
        return {log.requested[index] for index, stream in log.streams.items() if stream == 1}

    two_experts = 2 * 3 * 1024 * 2816 * 2
    assert two_experts in gathers(4)
    assert two_experts // 2 not in gathers(8)


@pytest.mark.parametrize(
    "layout",
    [
        Layout(tensor=4),
        Layout(pipeline=2, micro_batches=2),
        Layout(data=4, sharding="fsdp"),
        Layout(tensor=2, sequence=True),
    ],
)
def test_parameters_of_the_model_and_of_the_rank_are_told_apart(layout: Layout) -> None:
    whole = estimate_training(CONFIG, Recipe(length=64))
    estimate = estimate_training(CONFIG, Recipe(length=64, layout=layout))
    assert whole.num_rank_parameters == whole.num_parameters == estimate.num_parameters
    parameter_bytes = estimate.peaks["optimizer"].requested_by_category[Category.PARAMETER]
    assert parameter_bytes == 2 * estimate.num_rank_parameters < 2 * whole.num_parameters


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
    assert [layout.in_flight for layout in layouts] == in_flight


def test_the_stage_that_needs_most_is_named() -> None:
    estimate = estimate_training(
        CONFIG, Recipe(batch=4, length=1024, layout=Layout(pipeline=4, micro_batches=8))
    )
    peaks = [
        play(Layout(pipeline=4, micro_batches=8, stage=stage), "backward").allocated_bytes
        for stage in range(4)
    ]
    assert estimate.recipe.layout.stage == peaks.index(max(peaks))


@pytest.mark.parametrize(
    ("fields", "layout", "message"),
    [
        (FIELDS, Layout(tensor=8), "'num_key_value_heads': found 4, which tensor 8"),
        (FIELDS | {"num_hidden_layers": 2}, Layout(pipeline=4), "'num_hidden_layers': found 2"),
        (FIELDS | {"model_type": "gpt2"}, Layout(tensor=2), "cannot divide"),
        (FIELDS, Layout(tensor=4, sequence=True), "length: found 66, .* multiple of 4"),
        (
            FIELDS | {"tie_word_embeddings": True},
            Layout(tensor=2, sequence=True),
            "tie_word_embeddings: found true",
        ),
        (FIELDS, Layout(context=4), "length: found 66, .* multiple of 8"),
        (FIELDS | {"model_type": "gpt2"}, Layout(context=3), "cannot divide"),
        (FIELDS | {"model_type": "gemma2"}, Layout(context=3), "context parallelism"),
        (
            FIELDS | {"model_type": "mistral", "sliding_window": 32},
            Layout(context=3),
            "length: found 66, beyond the sliding window of 32",
        ),
        (FIELDS, Layout(data=2, expert=2, sharding="fsdp"), "no experts"),
        (
            FIELDS | {"model_type": "mixtral", "num_local_experts": 6},
            Layout(data=4, expert=4, sharding="fsdp"),
            "'num_local_experts': found 6, which expert 4",
        ),
    ],
)
def test_what_cannot_be_divided_is_told(
    fields: dict[str, object], layout: Layout, message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        estimate_training(Config("tiny", fields), Recipe(length=66, layout=layout))


def test_attention_by_hand_cannot_share_out_a_sequence() -> None:
    recipe = Recipe(length=64, attention="eager", layout=Layout(context=2))
    with pytest.raises(SpecError, match="attention: found eager"):
        estimate_training(CONFIG, recipe)


@pytest.mark.parametrize(
    "wrong",
    [
        {"data": 0},
        {"sharding": "zero9"},
        {"schedule": "x"},
        {"offload": True},
        {"stage": 1},
        {"context": 0},
        {"sequence": True},
        {"expert": 2, "data": 3, "sharding": "fsdp"},
        {"expert": 2, "data": 2},
        {"expert": 2, "data": 2, "sharding": "fsdp", "tensor": 2},
    ],
)
def test_a_layout_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(SpecError, match=next(iter(wrong))):
        Layout(**wrong)  # type: ignore[arg-type]
