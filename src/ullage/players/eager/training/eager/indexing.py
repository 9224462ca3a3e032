"""Parts of tensors by index."""

from __future__ import annotations

from collections.abc import Sequence

from ullage.players.eager.training.eager.autograd import connect, record
from ullage.players.eager.training.eager.tensor import Tensor


def select(x: Tensor, dimension: int) -> Tensor:
    """x[:, i]: shares the storage; backward fills a tensor of zeros.

    Products of matrices take rows that are far apart, so it counts as in order.
    """
    before = x.shape
    shape = (*before[:dimension], *before[dimension + 1 :])
    node = record((x,), lambda gradient, _: [gradient.like(before)])
    return connect(x.alias(shape), node)


def stack(tensors: Sequence[Tensor]) -> Tensor:
    """torch.stack: a new tensor; backward hands out views of its gradient."""
    shape, count = tensors[0].shape, len(tensors)
    node = record(tensors, lambda gradient, _: [gradient.alias(shape) for _ in range(count)])
    return connect(tensors[0].like((count, *shape)), node)


def choose(condition: Tensor, x: Tensor) -> Tensor:
    """torch.where(condition, x, number): saves the condition."""
    node = record((x,), lambda gradient, _: [gradient.like()], condition)
    out = x.like()
    out.is_dense = x.is_dense
    return connect(out, node)


def rows(table: Tensor, indices: Tensor) -> Tensor:
    """table[indices]: saves the indices; backward puts into a tensor of zeros."""
    before = table.shape
    node = record((table,), lambda gradient, _: [gradient.like(before)], indices)
    return connect(table.like((*indices.shape, *before[1:])), node)


def repeat(x: Tensor, dimension: int, size: int) -> Tensor:
    """x.repeat_interleave up to a size: a copy; backward adds into a tensor of zeros."""
    before = x.shape
    shape = (*before[:dimension], size, *before[dimension + 1 :])
    node = record((x,), lambda gradient, _: [gradient.like(before)])
    return connect(x.like(shape), node)
