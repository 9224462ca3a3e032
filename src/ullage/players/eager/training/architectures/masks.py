"""The masks that transformers makes for attention (masking_utils.py)."""

from __future__ import annotations

from ullage.players.eager.training.eager.tensor import BOOL, Tensor
from ullage.players.eager.training.recipe import Recipe


def causal_mask(x: Tensor, recipe: Recipe, window: int | None = None) -> Tensor | None:
    """For hidden states (batch, length, width): (batch, 1, length, length), or None where sdpa
    needs none because every earlier token is seen.

    window: how many tokens back are seen. sdpa gets booleans, that all samples share; attention by
        hand gets numbers to add.
    """
    x.arena.operator = causal_mask.__code__
    batch, length = x.shape[:2]
    shape = (batch, 1, length, length)
    if recipe.attention == "eager":
        visible = x.like((1, *shape[1:]), BOOL)
        mask = x.like(shape)
        del visible
        return mask
    if recipe.packed:
        return x.like((batch, *shape[1:]), BOOL)
    if window is None or length <= window:
        return None
    return x.like((1, *shape[1:]), BOOL).alias(shape, is_dense=False)


def eager_mask(x: Tensor) -> Tensor | None:
    """The causal mask of a model whose sdpa needs none: numbers to add, where scores are kept."""
    if not x.arena.is_attention_eager:
        return None
    x.arena.operator = eager_mask.__code__
    batch, length = x.shape[:2]
    visible = x.like((1, 1, length, length), BOOL)
    mask = x.like((batch, 1, length, length))
    del visible
    return mask
