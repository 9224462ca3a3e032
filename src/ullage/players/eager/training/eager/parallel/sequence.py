"""Sequence parallelism: between attention and MLP, which a tensor-parallel group divides by heads
and width, each rank has a part of the sequence.

As SequenceParallel, ColwiseParallel and RowwiseParallel of torch.distributed.tensor.parallel have
it. What goes into attention and MLP is gathered along the sequence, what comes out is summed and
scattered; each way back is the other. Collectives exchange along dimension 0, so that what belongs
along another is copied into order (all_gather_single and reduce_scatter_single of
torch/distributed/_functional_collectives.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ullage.players.eager.training.eager.autograd import connect, record
from ullage.players.eager.training.eager.functional import embedding
from ullage.players.eager.training.eager.kernels import collect, paused
from ullage.players.eager.training.eager.module import Module, parameter
from ullage.players.eager.training.eager.tensor import Tensor


def gather(x: Tensor, ranks: int) -> Tensor:
    """(batch, length / ranks, width) as (batch, length, width)."""
    node = record((x,), lambda gradient, _: [_reduce_scatter(gradient, ranks)])
    return connect(_all_gather(x, ranks), node)


def scatter(x: Tensor, ranks: int) -> Tensor:
    """Each rank's summand, (batch, length, width), as this rank's part of the sum."""
    node = record((x,), lambda gradient, _: [_all_gather(gradient, ranks)])
    return connect(_reduce_scatter(x, ranks), node)


def _all_gather(x: Tensor, ranks: int) -> Tensor:
    """Gathers the parts; of a single sample they already lie in order."""
    batch, length, *rest = x.shape
    with paused(x.arena):
        gathered = x.like((batch, ranks * length, *rest))
    collect(x.arena, "all-gather", gathered.nbytes, ranks)
    return gathered if batch == 1 else gathered.like()


def _reduce_scatter(x: Tensor, ranks: int) -> Tensor:
    batch, length, *rest = x.shape
    in_order = x.like(x.shape)
    with paused(x.arena):
        out = x.like((batch, length // ranks, *rest))
    collect(x.arena, "reduce-scatter", in_order.nbytes, ranks)
    del in_order
    return out


class Reduced(Module):
    """Attention or an MLP of which each rank has a part, among norms that all ranks have whole: its
    output is summed over the ranks, and in the backward pass the gradient of its input.
    """

    def __init__(self, inner: Callable[..., Tensor], ranks: int) -> None:
        self.inner = inner
        self.ranks = ranks

    def __call__(self, x: Tensor, *others: Any) -> Tensor:  # noqa: ANN401
        out = self.inner(sum_gradients(x, self.ranks), *others)
        collect(out.arena, "all-reduce", out.nbytes, self.ranks)
        return out


def sum_gradients(x: Tensor, ranks: int) -> Tensor:
    """x, whose gradient is summed over the ranks."""

    def rule(gradient: Tensor, _: object) -> list[Tensor]:
        collect(gradient.arena, "all-reduce", gradient.nbytes, ranks)
        return [gradient]

    return connect(x.alias(is_dense=x.is_dense), record((x,), rule))


class Gathered(Module):
    """Attention or an MLP that sees the whole sequence, among norms that see a part of it."""

    def __init__(self, inner: Callable[..., Tensor], ranks: int) -> None:
        self.inner = inner
        self.ranks = ranks

    def __call__(self, x: Tensor, *others: Any) -> Tensor:  # noqa: ANN401
        return scatter(self.inner(gather(x, self.ranks), *others), self.ranks)


class DividedEmbedding(Module):
    """An embedding of which each rank has some of the vocabulary's rows.

    The gradient has all rows: DTensor leaves it as one summand of the sum over ranks (Partial), of
    which the optimizer takes its own part.
    """

    def __init__(self, weight: Tensor, ranks: int) -> None:
        self.rows, width = weight.shape
        self.ranks = ranks
        self.weight = parameter(weight.arena, -(-self.rows // ranks), width, dtype=weight.dtype)

    def __call__(self, indices: Tensor) -> Tensor:
        return scatter(embedding(indices, self.weight, rows=self.rows), self.ranks)
