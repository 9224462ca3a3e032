"""LoRA slots of a server: their bytes, and how a plan asks for them."""

from __future__ import annotations

import pytest

from ullage.facts.families.architecture import read_model
from ullage.facts.families.builtin import find_model
from ullage.facts.families.layers import Model
from ullage.facts.gpus.catalog import find_gpu
from ullage.ground.errors import SpecError
from ullage.ground.units import MIB
from ullage.players.eager.serving.adapters import slot_bytes
from ullage.players.eager.serving.gpu_ranking import rank_for_serving
from ullage.players.eager.serving.serving import estimate_serving
from ullage.players.eager.serving.serving_plan import ServingPlan

LLAMA = find_model("llama-3.1-8b").config


def model(name: str) -> Model:
    return read_model(find_model(name).config)


# Figures of vLLM's users: 80 MiB a slot at rank 16, and so on.
@pytest.mark.parametrize(
    ("name", "rank", "expected"),
    [("llama-3.1-8b", 16, 80), ("llama-3.1-8b", 64, 320), ("llama-3.1-70b", 16, 395)],
)
def test_adapter_slots(name: str, rank: int, expected: int) -> None:
    assert slot_bytes(model(name), rank) == expected * MIB
    assert slot_bytes(model(name), rank, slots=3) == 3 * expected * MIB


def test_slots_shrink_with_ranks_but_not_in_proportion() -> None:
    whole, quarter = (slot_bytes(model("llama-3.1-8b"), 16, 1, ranks) for ranks in (1, 4))
    assert whole / 4 < quarter < whole


def test_a_plan_with_slots_leaves_less_for_the_cache() -> None:
    gpu = find_gpu("l40s")
    plain = estimate_serving(LLAMA, ServingPlan(gpu=gpu))
    adapted = estimate_serving(LLAMA, ServingPlan(gpu=gpu, lora_slots=4))
    assert adapted.plan.lora_rank == 16
    own = 2 * 16 * (128_256 + 4096) * 2  # of the embedding and the head, in vLLM 0.32
    assert adapted.plan.lora_bytes == 4 * (80 * MIB + own)
    lost = {more - less for more, less in zip(plain.kv_bytes, adapted.kv_bytes, strict=True)}
    assert lost == {adapted.plan.lora_bytes}
    assert sum(term.bytes for term in adapted.terms) == gpu.total_bytes


def test_a_ranking_divides_the_slots_among_the_gpus() -> None:
    gpu, plan = find_gpu("l4"), ServingPlan(users=4, lora_slots=1, lora_rank=256)
    (row,) = rank_for_serving(LLAMA, plan, [gpu])
    assert row.count is not None and row.count > 1
    shared = estimate_serving(
        LLAMA, ServingPlan(gpu=gpu, users=4, lora_slots=1, lora_rank=256, tensor_parallel=row.count)
    )
    assert row.users == shared.users[0]
    assert shared.plan.lora_bytes < slot_bytes(read_model(LLAMA), 256)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"lora_slots": 1, "engine": "transformers"}, "lora_slots: only vLLM reads it"),
        ({"lora_rank": 16}, "add lora_slots"),
        ({"lora_slots": -1}, "lora_slots: found -1"),
    ],
)
def test_slots_that_cannot_be_are_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        ServingPlan(**fields)  # type: ignore[arg-type]
