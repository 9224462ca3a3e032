"""Operators of image models besides convolutions and norms: pooling, resizing, work in place."""

from __future__ import annotations

from collections.abc import Sequence

from ullage.players.eager.training.eager.autograd import Gradients, connect, keep, record
from ullage.players.eager.training.eager.tensor import INT64, Tensor


def relu_(x: Tensor) -> Tensor:
    """ReLU in place: saves its output, which is where the input was."""
    node = record((x,), lambda gradient, _: [gradient.like()])
    out = x.alias(is_dense=x.is_dense)
    if node is not None:
        keep(node, out)
    return connect(out, node)


def max_pool(x: Tensor, size: int, stride: int, padding: int) -> Tensor:
    """max_pool2d: saves its input, and where each maximum was, 8 bytes for each."""
    before = x.shape
    sides = ((side + 2 * padding - size) // stride + 1 for side in before[2:])
    node = record((x,), lambda gradient, _: [gradient.like(before)], x)
    out = x.like((*before[:2], *sides))
    places = out.like(dtype=INT64)
    if node is not None:
        keep(node, places)
    return connect(out, node)


def average(x: Tensor) -> Tensor:
    """adaptive_avg_pool2d to one value for each channel, as (batch, channels)."""
    before = x.shape
    node = record((x,), lambda gradient, _: [gradient.like(before)])
    return connect(x.like(before[:2]), node)


def upsample(x: Tensor, factor: int = 2) -> Tensor:
    """interpolate(scale_factor, mode="nearest"): saves nothing."""
    before = x.shape

    def rule(gradient: Tensor, _: Sequence[Tensor]) -> Gradients:
        return [gradient.like(before).lay_out(is_permuted=gradient.is_permuted)]

    node = record((x,), rule)
    out = x.like((*before[:2], *(factor * side for side in before[2:])))
    return connect(out.lay_out(is_permuted=x.is_permuted), node)


def mean_squared_error(x: Tensor, target: Tensor) -> Tensor:
    """mse_loss: saves both; the squares are gone when their mean is there."""
    node = record((x,), lambda gradient, saved: [saved[0].like()], x, target)
    loss = x.like(())
    squares = x.like()
    del squares
    return connect(loss, node)


def pad(x: Tensor, size: int) -> Tensor:
    """F.pad by zeros at one end of the last two dimensions; backward copies what is within."""
    before = x.shape
    node = record((x,), lambda gradient, _: [gradient.like(before)])
    return connect(x.like((*before[:2], *(size + side for side in before[2:]))), node)
