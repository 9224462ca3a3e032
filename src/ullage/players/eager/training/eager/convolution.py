"""Convolutions, by cuDNN and by PyTorch's own kernels."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ullage.players.eager.training.eager.arena import Arena
from ullage.players.eager.training.eager.autocast import lower
from ullage.players.eager.training.eager.autograd import Gradients, connect, record
from ullage.players.eager.training.eager.cudnn import Convolution, Direction, convolution_scratch
from ullage.players.eager.training.eager.kernels import Kernel, Kind, launch, paused
from ullage.players.eager.training.eager.module import Module, parameter
from ullage.players.eager.training.eager.reductions import scratch_of_columns
from ullage.players.eager.training.eager.tensor import DType, Tensor


def convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, stride: int = 1, padding: int = 0
) -> Tensor:
    """conv1d, conv2d: x is (batch, channels, sizes...), weight (outputs, channels, sizes...).

    A picture whose channels lie last gives one like it, from a copy of the weight that is laid out
    so. A group for each channel (weight's channels are 1) goes through PyTorch's own kernels.
    Saves x and the weight; backward makes the gradients of x, weight and bias in this order.
    """
    x, weight = lower(x), lower(weight)
    bias = None if bias is None else lower(bias)
    is_last = x.is_permuted and len(x.shape) == _PICTURE
    is_fine = x.is_dense or (is_last and x.is_whole)  # else the kernels get a copy
    sizes = (
        (size + 2 * padding - reach) // stride + 1
        for size, reach in zip(x.shape[2:], weight.shape[2:], strict=True)
    )
    problem = Convolution(
        x.shape, weight.shape, (x.shape[0], weight.shape[0], *sizes), x.dtype, stride == 1, is_last
    )
    has_copy = is_last and prod(weight.shape[2:]) > 1
    needs_grad = x.needs_grad, weight.needs_grad, bias is not None and bias.needs_grad

    def rule(gradient: Tensor, saved: Sequence[Tensor]) -> Gradients:
        whole = gradient if gradient.is_permuted is is_last else gradient.like(gradient.shape)
        dense = None if is_fine or not needs_grad[1] else gradient.like(problem.image)
        tensors: list[Tensor | None] = [None, None, None]
        if needs_grad[0]:
            tensors[0] = _result(gradient, problem.image, is_permuted=is_last)
            copy = saved[1].like(problem.filter) if has_copy else None
            _work(gradient.arena, Direction.BACKWARD_DATA, problem)
            del copy
        if needs_grad[1]:
            tensors[1] = _result(gradient, problem.filter, is_permuted=has_copy)
            _work(gradient.arena, Direction.BACKWARD_FILTER, problem)
        del whole, dense
        if needs_grad[2]:
            tensors[2] = _sum_to_channels(gradient)
        return tensors

    node = record((x, weight, bias), rule, x, weight)
    dense_x = None if is_fine else x.like(x.shape)
    out = _result(x, problem.response, is_permuted=is_last)
    copy = weight.like(weight.shape) if has_copy else None
    _work(x.arena, Direction.FORWARD, problem)
    del copy, dense_x
    return connect(out, node)


_PICTURE = 4  # dimensions


def _result(like: Tensor, shape: tuple[int, ...], *, is_permuted: bool) -> Tensor:
    """The tensor that cuDNN writes, which is not a kernel of its own."""
    with paused(like.arena):
        return like.like(shape).lay_out(is_permuted=is_permuted)


def _sum_to_channels(gradient: Tensor) -> Tensor:
    """A bias's gradient; where channels lie last, the columns of a matrix are summed."""
    channels = gradient.shape[1]
    out = gradient.like((channels,))
    launch(Kind.SUM, out, gradient)
    if gradient.is_permuted:
        rows = gradient.numel // channels
        sizes = scratch_of_columns(gradient.arena.machine, rows, channels, gradient.dtype)
        scratch = [gradient.arena.take(size) for size in sizes]
        del scratch
    return out


def _work(arena: Arena, direction: Direction, problem: Convolution) -> None:
    """cuDNN's workspace, for as long as it computes."""
    if arena.recorder is not None:
        shapes = (problem.response, problem.image, problem.filter)
        sizes = tuple(prod(shape) * problem.dtype.itemsize for shape in shapes)
        numbers = (prod(problem.response) * prod(problem.filter[1:]), problem.num_groups)
        kernel = Kernel(Kind.CONVOLUTION, sizes, numbers, problem.dtype.name, direction.value)
        arena.recorder.add(kernel)
    if problem.num_groups == 1 or problem.filter[1] > 1:
        arena.assume(*convolution_scratch(arena.machine, direction, problem))


class Conv(Module):
    """nn.Conv1d and nn.Conv2d with equal sizes in each dimension."""

    def __init__(
        self,
        arena: Arena,
        inputs: int,
        outputs: int,
        size: int,
        dtype: DType,
        *,
        stride: int = 1,
        padding: int = 0,
        groups: int = 1,
        has_bias: bool = True,
        dimensions: int = 2,
    ) -> None:
        sizes = (size,) * dimensions
        self.weight = parameter(arena, outputs, inputs // groups, *sizes, dtype=dtype)
        self.bias = parameter(arena, outputs, dtype=dtype) if has_bias else None
        self.stride = stride
        self.padding = padding

    def __call__(self, x: Tensor) -> Tensor:
        return convolve(x, self.weight, self.bias, stride=self.stride, padding=self.padding)
