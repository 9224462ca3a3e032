"""Speculative decoding in vLLM: a smaller model proposes tokens, and the model checks them.

    model, plan = with_draft(model, plan, draft_config)     # plan.speculated tokens ahead

The draft's layers draw from the same pool of blocks as the model's, so a block has pages of both,
and every token that the cache holds is paid for twice.
"""

from __future__ import annotations

from dataclasses import replace

from ullage.facts.families.architecture import read_model
from ullage.facts.families.config import Config
from ullage.facts.families.layers import Cross, Encoder, Model
from ullage.ground.errors import SpecError
from ullage.players.eager.serving.model_weights import find_format, weight_bytes
from ullage.players.eager.serving.serving_plan import ServingPlan


def draft_bytes(draft: Config, tensor_parallel: int = 1) -> int:
    """Bytes of the draft's weights on one rank.

    Counts: all of them, in the format of the draft's own checkpoint; vLLM shards the draft over
    as many ranks as the model.
    Ignores: an embedding that the draft shares with the model, as EAGLE's and MTP's heads do.
    Error: that of weight_bytes; docs/results/estimates.md.
    Source: Leviathan et al. 2022, arXiv:2211.17192; vLLM 0.32, v1/spec_decode/draft_model.py.
    """
    sizes = weight_bytes(read_model(draft), find_format(draft), tensor_parallel)
    return sum(sizes.values())


def with_draft(model: Model, plan: ServingPlan, draft: Config) -> tuple[Model, ServingPlan]:
    """The model with the draft's layers behind its own, and the plan with the draft's weights.

    Raises:
        SpecError: the draft has another vocabulary, or an encoder.
    """
    small = read_model(draft)
    if any(isinstance(layer, Encoder | Cross) for layer in (*model.layers, *small.layers)):
        raise SpecError("draft: expected two decoders; an encoder cannot propose tokens")
    if small.vocab != model.vocab:
        raise SpecError(
            f"draft: found a vocabulary of {small.vocab:,}, expected the model's {model.vocab:,}; "
            f"take a draft of the same family"
        )
    small.check_tensor_parallel(plan.tensor_parallel)
    size = plan.draft_bytes + draft_bytes(draft, plan.tensor_parallel)
    # The weights and the widest layer stay the model's: they decide the trial step.
    return replace(model, layers=(*model.layers, *small.layers)), replace(plan, draft_bytes=size)


def describe_draft(draft: Config, speculated: int) -> str:
    """The text for the term of the weights."""
    tokens = f"{speculated} token{'s' if speculated > 1 else ''}"
    return f"{draft.name} proposes {tokens}"
