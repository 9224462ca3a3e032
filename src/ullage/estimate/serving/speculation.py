"""Speculative decoding: what the tokens that are proposed ahead cost in memory."""

from __future__ import annotations

from dataclasses import dataclass

from ullage.estimate.serving.kv_cache import state_bytes, token_bytes
from ullage.estimate.serving.model_weights import weight_bytes
from ullage.models.layers import Attention, Latent, Model, Recurrent

__all__ = ["Speculation", "with_draft", "with_layers"]


@dataclass(frozen=True, slots=True)
class Speculation:
    """Bytes on one rank.

    Attributes:
        weight_bytes: of what proposes.
        token_bytes: that it keeps for each token of a request, beside the model's own.
        request_bytes: for each request, however long: slots of the tokens ahead, and states that
            must be taken back when a proposal is refused.
        step_bytes: logits of the proposed tokens, for each request of a step.
    """

    weight_bytes: int
    token_bytes: int
    request_bytes: int
    step_bytes: int


def with_draft(
    model: Model, draft: Model, ahead: int, tensor_parallel: int = 1, kv: str = "bf16"
) -> Speculation:
    """A smaller model proposes `ahead` tokens, and the model checks them in one step.

    Counts: the draft's weights and its keys and values for every token; lookahead slots of both;
    one more recurrent state of the model for each proposed token; ahead + 1 rows of logits.
    Ignores: the draft's activations, which are smaller than the model's own peak; blocks that
    groups of unequal length pad (engines/vllm.py counts them when the draft's layers are given).
    Error: that of weight_bytes; keys and values none.
    Source: Leviathan et al. 2022, arXiv:2211.17192; vLLM 0.32, v1/kv_cache_interface.py.
    """
    own = _kept(draft, tensor_parallel, kv)
    return Speculation(
        sum(weight_bytes(draft, tensor_parallel=tensor_parallel).values()),
        own,
        ahead * (own + _kept(model, tensor_parallel, kv)) + _states(model, ahead, tensor_parallel),
        _logits(model, ahead),
    )


def with_layers(
    model: Model, layers: int, ahead: int, tensor_parallel: int = 1, kv: str = "bf16"
) -> Speculation:
    """The model's own extra layers propose (EAGLE: one; MTP: one for each token ahead).

    Counts: for each extra layer as many keys and values as the model's widest layer, and a block
    of weights as large as the model's average one, with a projection of 2 x hidden to hidden.
    Ignores: an output head or embedding of its own, which EAGLE checkpoints of some models have.
    Error: weights up to the difference between a model's blocks (its experts, where only some have
    them); keys and values none.
    Source: Li et al. 2024, arXiv:2401.15077; DeepSeek-V3, arXiv:2412.19437, section 2.2.
    """
    attended = [layer for layer in model.layers if isinstance(layer, Attention | Latent)]
    each = max((token_bytes(layer, kv, tensor_parallel) for layer in attended), default=0)
    parts = weight_bytes(model, tensor_parallel=tensor_parallel)
    blocks = sum(size for part, size in parts.items() if part.value not in _OUTER)
    weights = layers * (blocks // max(1, len(model.layers)) + 4 * model.hidden**2)
    own = layers * each
    held = ahead * (own + _kept(model, tensor_parallel, kv))
    return Speculation(
        weights, own, held + _states(model, ahead, tensor_parallel), _logits(model, ahead)
    )


_OUTER = ("embedding", "output head")


def _kept(model: Model, tensor_parallel: int, kv: str) -> int:
    return sum(token_bytes(layer, kv, tensor_parallel) for layer in model.layers)


def _states(model: Model, ahead: int, tensor_parallel: int) -> int:
    return ahead * sum(
        state_bytes(layer, tensor_parallel)
        for layer in model.layers
        if isinstance(layer, Recurrent)
    )


def _logits(model: Model, ahead: int) -> int:
    """32-bit rows: the proposals, and the token after them."""
    return (ahead + 1) * model.vocab * 4
