"""The loss of a classifier or a language model, in eager mode and compiled."""

from __future__ import annotations

from ullage.players.eager.training.eager.autograd import connect, keep, record
from ullage.players.eager.training.eager.kernels import Kind, launch
from ullage.players.eager.training.eager.reductions import log_softmax
from ullage.players.eager.training.eager.tensor import FLOAT32, Tensor


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """log_softmax and nll_loss, both of which keep the probabilities of all classes; compiled, the
    logits as they come and a maximum and a sum of each row.
    """
    if logits.arena.is_compiled:
        return _fused_cross_entropy(logits, labels)
    logs = log_softmax(logits)
    shape = logs.shape

    def rule(gradient: Tensor, _: object) -> list[Tensor | None]:
        out = gradient.like(shape)
        launch(Kind.POINTWISE, out)
        return [out]

    node = record((logs,), rule, logs, labels)
    loss = logs.like(())
    launch(Kind.LOOKUP, loss, labels, labels)
    weight = logs.like(())
    if node is not None:
        keep(node, weight)
    return connect(loss, node)


def _fused_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """As in Inductor: what is computed of the logits in between is never in memory."""
    shape = logits.shape
    dtype = logits.dtype
    node = record((logits,), lambda gradient, _: [gradient.like(shape, dtype)], logits, labels)
    rows = [logits.like((*shape[:-1], 1), FLOAT32) for _ in range(2)]
    loss = logits.like((), FLOAT32)
    if node is not None:
        keep(node, *rows)
    return connect(loss, node)
