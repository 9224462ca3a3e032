"""Normalization of images: by batch and by group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ullage.log.category import Category
from ullage.players.eager.training.eager.arena import Arena
from ullage.players.eager.training.eager.autocast import raise_
from ullage.players.eager.training.eager.autograd import Gradients, connect, keep, record
from ullage.players.eager.training.eager.kernels import Kind, launch
from ullage.players.eager.training.eager.module import Module, parameter
from ullage.players.eager.training.eager.tensor import FLOAT32, INT64, UINT8, DType, Tensor, empty

_WORD_BITS: Final = 32
_PICTURE: Final = 4  # dimensions


def batch_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """batch_norm in training: saves its input, and of each channel a mean and a deviation.

    Float goes through cuDNN, which may keep a bit of each element in a reserve space; the phantom
    takes it that normalization alone needs none. Ignores: cuDNN's partial sums, at most 128 KiB.
    """
    channels = weight.shape
    dtype = weight.dtype

    def rule(gradient: Tensor, _: Sequence[Tensor]) -> Gradients:
        out = gradient.like()
        launch(Kind.ROWS_BACKWARD, out, gradient, gradient)
        return [out, gradient.like(channels, dtype), gradient.like(channels, dtype)]

    node = record((x, weight, bias), rule, x, weight)
    out = x.like()
    launch(Kind.ROWS, out, x)
    statistics = [x.like(channels, FLOAT32), x.like(channels, FLOAT32)]
    if node is not None:
        keep(node, *statistics)
        if x.dtype is FLOAT32:
            mask = -(-x.numel // _WORD_BITS) * (_WORD_BITS // 8)
            keep(node, Tensor((0,), UINT8, x.arena.assume(0, 0, mask)))
    return connect(out, node)


def group_norm(x: Tensor, groups: int, weight: Tensor, bias: Tensor) -> Tensor:
    """native_group_norm: saves its input, and of each sample's group a mean and a deviation.

    Source: aten/src/ATen/native/cuda/group_norm_kernel.cu.
    """
    x, weight, bias = raise_(x), raise_(weight), raise_(bias)
    batch, channels = x.shape[:2]
    # Pictures may have their channels last; anything else is copied into order.
    dtype, is_permuted = weight.dtype, x.is_permuted and len(x.shape) == _PICTURE
    is_fine = x.is_dense or is_permuted

    def rule(gradient: Tensor, saved: Sequence[Tensor]) -> Gradients:
        whole = gradient if gradient.is_permuted is is_permuted else gradient.like(gradient.shape)
        dense = None if is_fine else gradient.like(saved[0].shape)
        out = gradient.like(saved[0].shape).lay_out(is_permuted=is_permuted)
        launch(Kind.ROWS_BACKWARD, out, gradient, gradient)
        gradients = [out, gradient.like((channels,), dtype), gradient.like((channels,), dtype)]
        sums = [gradient.like((batch, channels), FLOAT32) for _ in range(2)]
        factors = [gradient.like((batch, groups, 1), FLOAT32) for _ in range(2)]
        del sums, factors, whole, dense
        return gradients

    node = record((x, weight, bias), rule, x, weight)
    dense_x = None if is_fine else x.like(x.shape)
    out = x.like(x.shape).lay_out(is_permuted=is_permuted)
    launch(Kind.ROWS, out, x, x)
    statistics = [x.like((batch, groups)) for _ in range(2)]
    factors = [x.like((batch, channels), FLOAT32) for _ in range(2)]
    del factors, dense_x
    if node is not None:
        keep(node, *statistics)
    return connect(out, node)


class BatchNorm(Module):
    """nn.BatchNorm2d."""

    def __init__(self, arena: Arena, width: int, dtype: DType) -> None:
        self.weight = parameter(arena, width, dtype=dtype)
        self.bias = parameter(arena, width, dtype=dtype)
        self.buffers = [empty(arena, (width,), dtype, Category.BUFFER) for _ in range(2)]
        self.buffers.append(empty(arena, (), INT64, Category.BUFFER))

    def __call__(self, x: Tensor) -> Tensor:
        return batch_norm(x, self.weight, self.bias)


class GroupNorm(Module):
    """nn.GroupNorm."""

    def __init__(self, arena: Arena, groups: int, width: int, dtype: DType) -> None:
        self.groups = groups
        self.weight = parameter(arena, width, dtype=dtype)
        self.bias = parameter(arena, width, dtype=dtype)

    def __call__(self, x: Tensor) -> Tensor:
        return group_norm(x, self.groups, self.weight, self.bias)
