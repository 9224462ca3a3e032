"""The losses that models of transformers compute when they are given labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ullage.players.eager.training.eager import functional as F
from ullage.players.eager.training.eager.autograd import Gradients, connect, keep, record
from ullage.players.eager.training.eager.tensor import FLOAT32, INT64, DType, Tensor, empty

_CHUNKS: Final = 8  # torchtune's CEWithChunkedOutputLoss


def language_loss(
    head: Callable[[Tensor], Tensor], weight: Tensor, x: Tensor, labels: Tensor, kind: str
) -> Tensor:
    """The loss of a language model, of hidden states (batch, length, width).

    head: the logits of hidden states; weight: the head's matrix; kind: of a recipe's losses.
    """
    if kind == "fused":
        return fused_loss(weight, x)
    if kind == "chunked":
        size = -(-x.shape[1] // _CHUNKS)
        return chunked_loss(head, x, labels, size=size, dtype=FLOAT32)
    return causal_loss(head(x), labels)


def chunked_loss(
    head: Callable[[Tensor], Tensor],
    x: Tensor,
    labels: Tensor,
    *,
    size: int,
    dtype: DType,
    holder: list[Tensor] | None = None,
) -> Tensor:
    """The head, then the loss, of a number of tokens of each sample after the other: all chunks of
    logits are there before the first loss, whose probabilities are in a dtype.

    holder: gets the logits, which a loop's variable holds.

    Source: torchtune/modules/loss/cross_entropy_loss.py and modules/transformer.py
    (chunked_output); litgpt/utils.py (chunked_cross_entropy).
    """
    length = x.shape[1]
    sizes = [size] * (length // size) + ([length % size] if length % size else [])
    logits = [head(part) for part in F.split(x, sizes, 1)]
    if holder is not None:
        holder += logits
    losses = []
    for part in logits:
        batch, count, vocab = part.shape
        flat = F.to(F.reshape(part, (batch * count, vocab)), dtype)
        losses.append(F.cross_entropy(flat, labels.alias((batch * count,))))
        del flat
    total = losses[0]
    for loss in losses[1:]:
        total = F.add(total, loss)
    return total


def fused_loss(weight: Tensor, x: Tensor) -> Tensor:
    """LigerFusedLinearCrossEntropyLoss: the gradients of hidden states and head are computed in
    the forward pass, chunk by chunk, and kept instead of logits.

    Source: liger_kernel/ops/fused_linear_cross_entropy.py (fused_linear_cross_entropy_forward).
    """
    x = F.contiguous(x)
    vocab, width = weight.shape
    tokens = x.numel // width
    needs_grad = x.needs_grad, weight.needs_grad
    size = 1 << max(-(-tokens // -(-vocab // width)) - 1, 0).bit_length()

    def rule(_: Tensor, saved: Sequence[Tensor]) -> Gradients:
        gradients = iter([tensor.detach() for tensor in saved])
        return [next(gradients) if is_wanted else None for is_wanted in needs_grad]

    node = record((x, weight), rule)
    of_input = x.like(x.shape)
    of_weight = weight.like(weight.shape) if weight.needs_grad else None
    losses = x.like((tokens,), FLOAT32)
    for _ in range(min(2, -(-tokens // size))):  # the others are as the second
        logits = F.multiply(x, (min(size, tokens), vocab), work=2 * tokens * vocab * width)
        wide = F.multiply(logits, (min(size, tokens), width))
        if of_weight is not None:
            F.multiply(logits, weight.shape)
        del logits, wide
    loss = losses.like(())
    if node is not None:
        keep(node, *(tensor for tensor in (of_input, of_weight) if tensor is not None))
    return connect(loss, node)


def causal_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """ForCausalLMLoss: the logits in float32, the labels padded and shifted by one."""
    upcast = logits if logits.arena.is_compiled else F.to(logits, FLOAT32)
    batch, length, vocab = upcast.shape
    padded = labels.like((batch, length + 1))
    labels = labels.like()
    upcast = F.view(upcast, (batch * length, vocab))
    loss = F.cross_entropy(upcast, F.view(labels, (batch * length,)))
    del upcast, padded
    return loss


def token_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The loss of all tokens, neither cast nor shifted."""
    batch, length, vocab = logits.shape
    labels = labels.alias((batch * length,))
    return F.cross_entropy(F.view(logits, (batch * length, vocab)), labels)


def unit_length(x: Tensor) -> Tensor:
    """x / |x|, of the last dimension."""
    return F.mul(x, F.rsqrt(F.mean(F.pow2(x))))


def contrast(first: Tensor, second: Tensor) -> Tensor:
    """Each row of the first against all rows of the second, its own being the right one."""
    scores = F.scale(F.matmul(first, second, is_second_transposed=True))
    return F.cross_entropy(scores, empty(first.arena, first.shape[:1], INT64))
