"""LoRA adapters in a server: slots that are allocated whether or not an adapter is loaded."""

from __future__ import annotations

from typing import Final

from ullage.facts.families.layers import Model, Part
from ullage.ground.errors import SpecError

DEFAULT_RANK: Final = 16
"""max_lora_rank of vLLM 0.32 where the user gives none."""

# Model types whose classes in vLLM 0.32 name embedding_modules; the others have no slots for these.
_WITH_EMBEDDINGS: Final = frozenset(
    {
        "llama",
        "mistral",
        "mixtral",
        "qwen3",
        "qwen3_moe",
        "granite",
        "granitemoehybrid",
        "nemotron_h",
    }
)
_TARGETS = (Part.ATTENTION, Part.MLP, Part.RECURRENT)


def slot_bytes(
    model: Model, max_rank: int, slots: int = 1, tensor_parallel: int = 1, element: int = 2
) -> int:
    """Bytes of the slots for adapters on all linear layers of the blocks, on one rank.

    Counts: slots x rank x (rows + columns) of each matrix: A is rank x columns, B rows x rank.
    The longer side is cut over the ranks, the other repeated (vLLM without fully_sharded_loras).
    Ignores: experts, the output head and embeddings (embedding_slot_bytes); copies of adapters in
    the host's memory; the activations of the adapters, rank elements a token.
    Error: none for dense models; an adapter with fewer targets takes as much, since slots are made
    for what the model supports.
    Source: Hu et al. 2021, arXiv:2106.09685; vLLM 0.32, lora/layers (lora_a_stacked).

    Args:
        model: the one that the adapters are for.
        max_rank: max_lora_rank; smaller adapters are padded to it.
        slots: max_loras.
        tensor_parallel: GPUs that share every layer.
        element: bytes of an element.

    Raises:
        SpecError: a size is below 1.
    """
    if min(max_rank, slots, tensor_parallel) < 1:
        raise SpecError(f"max_rank={max_rank}, slots={slots}: expected at least 1 of each")
    sides = 0
    for weight in model.weights:
        if weight.is_linear and weight.part in _TARGETS:
            # Rows are cut where the matrix grows, columns where it shrinks.
            shards = min(tensor_parallel, weight.most_shards or tensor_parallel)
            longer, shorter = max(weight.out, weight.into), min(weight.out, weight.into)
            sides += weight.count * (longer // shards + shorter)
    return slots * max_rank * sides * element


def embedding_slot_bytes(model: Model, max_rank: int, slots: int = 1, element: int = 2) -> int:
    """Bytes of the slots for the embedding and the output head, on every rank; 0: it has none.

    Counts: slots x rank x (vocabulary + width) for each of the two; no rank has less.
    Ignores: the rounding of the vocabulary to multiples of 64.
    Error: docs/results/estimates.md.
    Source: vLLM 0.32, lora/layers/vocab_parallel_embedding.py, logits_processor.py.
    """
    if model.model_type not in _WITH_EMBEDDINGS:
        return 0
    return 2 * slots * max_rank * (model.vocab + model.hidden) * element
