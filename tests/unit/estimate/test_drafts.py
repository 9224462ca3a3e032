"""Speculative decoding: a draft's weights, and one pool for the layers of both."""

from __future__ import annotations

from typing import Any

import pytest

from ullage.facts.families.architecture import read_model
from ullage.facts.families.builtin import find_model
from ullage.ground.errors import SpecError
from ullage.players.eager.serving.adapters import embedding_slot_bytes
from ullage.verbs.capacity.function import capacity

PLAN: dict[str, Any] = {
    "gpu": "h100-80gb", "context": 8192, "eager": True, "batched_tokens": 8192,
    "max_seqs": 256,
}  # fmt: skip


# vLLM 0.32 on the phantom: weights, bytes of the cache, blocks and tokens that it prints.
def test_a_draft_is_counted_as_vllm_does() -> None:
    given = {**PLAN, "draft": "llama-3.2-1b:4"}
    estimate = capacity("llama-3.1-8b", kv_bytes=58_538_516_419, **given).estimate
    assert (estimate.num_blocks[1], estimate.tokens[1]) == (22_330, 357_280)
    weights = sum(term.bytes for term in estimate.terms[:2])
    assert weights == pytest.approx(18_600_407_552, rel=0.005)


def test_every_token_is_paid_for_twice() -> None:
    plain = capacity("llama-3.1-8b", **PLAN).estimate
    drafted = capacity("llama-3.1-8b", **PLAN, draft="llama-3.2-1b").estimate
    assert plain.block_bytes == 16 * 32 * 4096
    assert drafted.block_bytes == 16 * (32 * 4096 + 16 * 2048)
    assert drafted.plan.speculated == 1


def test_a_draft_of_another_vocabulary_is_refused() -> None:
    with pytest.raises(SpecError, match="take a draft of the same family"):
        capacity("llama-3.1-8b", draft="qwen3-0.6b")
    with pytest.raises(SpecError, match="leave out speculated=2"):
        capacity("llama-3.1-8b", draft="llama-3.2-1b:4", speculated=2)
    with pytest.raises(SpecError, match="speculated: only vLLM reads it"):
        capacity("llama-3.1-8b", draft="llama-3.2-1b", engine="transformers")


# vLLM 0.32 on the phantom: 185,115,648 bytes more with two slots of rank 16.
def test_slots_of_the_embedding_and_the_head_are_counted_where_vllm_has_them() -> None:
    llama = capacity("llama-3.1-8b", **PLAN, lora_slots=2).estimate
    assert llama.plan.lora_bytes == pytest.approx(185_115_648, rel=0.003)
    assert embedding_slot_bytes(read_model(find_model("qwen2.5-7b").config), 16) == 0
