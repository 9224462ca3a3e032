"""The losses that models of transformers compute when they are given labels."""

from __future__ import annotations

from ullage.estimate.training.eager import functional as F
from ullage.estimate.training.eager.tensor import FLOAT32, INT64, Tensor, empty

__all__ = ["causal_loss", "contrast", "unit_length"]


def causal_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """ForCausalLMLoss: the logits in float32, the labels padded and shifted by one."""
    upcast = F.to(logits, FLOAT32)
    batch, length, vocab = upcast.shape
    padded = labels.like((batch, length + 1))
    labels = labels.like()
    upcast = F.view(upcast, (batch * length, vocab))
    loss = F.cross_entropy(upcast, F.view(labels, (batch * length,)))
    del upcast, padded
    return loss


def unit_length(x: Tensor) -> Tensor:
    """x / |x|, of the last dimension."""
    return F.mul(x, F.rsqrt(F.mean(F.pow2(x))))


def contrast(first: Tensor, second: Tensor) -> Tensor:
    """Each row of the first against all rows of the second, its own being the right one."""
    scores = F.scale(F.matmul(first, second, is_second_transposed=True))
    return F.cross_entropy(scores, empty(first.arena, first.shape[:1], INT64))
