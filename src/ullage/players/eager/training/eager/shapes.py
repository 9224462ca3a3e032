"""Views, and the operators that change the layout of elements."""

from __future__ import annotations

from collections.abc import Sequence

from ullage.players.eager.training.eager.autograd import Gradients, connect, record
from ullage.players.eager.training.eager.kernels import Kind, launch
from ullage.players.eager.training.eager.reductions import fit
from ullage.players.eager.training.eager.tensor import Tensor


def view(x: Tensor, shape: Sequence[int]) -> Tensor:
    """x.view(shape): shares the storage."""
    before = x.shape
    node = record((x,), lambda gradient, _: [reshape(gradient, before)])
    return connect(x.alias(tuple(shape), is_dense=x.is_dense), node)


def reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    """x.reshape(shape): a view where the elements are in order, else a copy."""
    return view(x if x.is_dense else contiguous(x), shape)


def transpose(x: Tensor, first: int, second: int) -> Tensor:
    """x.transpose(first, second): shares the storage, no longer in order, or in order again."""
    sizes = list(x.shape)
    sizes[first], sizes[second] = sizes[second], sizes[first]
    node = record((x,), lambda gradient, _: [transpose(gradient, first, second)])
    out = x.alias(tuple(sizes), is_dense=x.is_dense)
    if 1 not in (x.shape[first], x.shape[second]):
        out.is_permuted = not x.is_permuted
        out.is_dense = x.is_permuted and x.is_whole
    return connect(out, node)


def contiguous(x: Tensor) -> Tensor:
    """x.contiguous(): a copy where the elements are not in order."""
    if x.is_dense:
        return x
    node = record((x,), lambda gradient, _: [gradient.detach()])
    return connect(x.like(x.shape), node)


def expand(x: Tensor, shape: Sequence[int]) -> Tensor:
    """x.expand(shape): shares the storage; backward sums."""
    before, dtype = x.shape, x.dtype
    node = record((x,), lambda gradient, _: [fit(gradient, before, dtype)])
    return connect(x.alias(tuple(shape), is_dense=False), node)


def narrow(x: Tensor, dimension: int, size: int) -> Tensor:
    """A slice x[..., a:a+size, ...]: shares the storage; backward fills a tensor of zeros."""
    before = x.shape
    sizes = list(before)
    sizes[dimension] = size

    def rule(gradient: Tensor, _: Sequence[Tensor]) -> Gradients:
        out = gradient.like(before)
        launch(Kind.POINTWISE, out)
        launch(Kind.STRIDED, gradient, gradient)
        return [out]

    node = record((x,), rule)
    return connect(x.alias(tuple(sizes), is_dense=False), node)


def split(x: Tensor, sizes: Sequence[int], dimension: int = -1) -> list[Tensor]:
    """x.split(sizes) and chunk: views, whose gradients are joined in one tensor."""
    before = x.shape

    def join(gradient: Tensor, _: Sequence[Tensor]) -> Gradients:
        out = gradient.like(before)
        launch(Kind.JOIN, out, out)
        return [out]

    hub = record((x,), join)
    if hub is not None:
        hub.gathered = []
    views = []
    for size in sizes:
        shape = list(before)
        shape[dimension] = size
        part = x.alias(tuple(shape), is_dense=False)
        if hub is not None:
            whole = connect(x.alias(before), hub)
            connect(part, record((whole,), lambda gradient, _: [gradient]))
        views.append(part)
    return views


def cat(tensors: Sequence[Tensor], dimension: int) -> Tensor:
    """torch.cat: a new tensor; backward hands out views of its gradient."""
    shapes = [tensor.shape for tensor in tensors]

    def rule(gradient: Tensor, _: Sequence[Tensor]) -> Gradients:
        return [gradient.alias(shape, is_dense=False) for shape in shapes]

    node = record(tensors, rule)
    sizes = list(tensors[0].shape)
    sizes[dimension] = sum(shape[dimension] for shape in shapes)
    out = tensors[0].like(tuple(sizes))
    launch(Kind.JOIN, out, *tensors)
    return connect(out, node)


def pad(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Zeros after the last step (constant_pad_nd); where there are none, a copy that lies alike."""
    before = x.shape
    node = record((x,), lambda gradient, _: [gradient.like(before)])
    return connect(x.like(None if tuple(shape) == before else tuple(shape)), node)


def repeat_heads(x: Tensor, times: int) -> Tensor:
    """repeat_kv of transformers: heads in dimension 1 are expanded and copied."""
    if times == 1:
        return x
    batch, heads, length, width = x.shape
    apart = view_any(x, (batch, heads, 1, length, width))
    wide = expand(apart, (batch, heads, times, length, width))
    if heads == 1:  # strides can say it
        return view_any(wide, (batch, times, length, width))
    return reshape(wide, (batch, heads * times, length, width))


def view_any(x: Tensor, shape: Sequence[int]) -> Tensor:
    """An index with None: a view whatever the strides are."""
    before, is_dense = x.shape, x.is_dense
    node = record((x,), lambda gradient, _: [gradient.alias(before, is_dense=gradient.is_dense)])
    return connect(x.alias(tuple(shape), is_dense=is_dense), node)


def in_order(x: Tensor) -> Tensor:
    """x, or a copy of it where its elements are not in order."""
    return x if x.is_dense else contiguous(x)


def permuted(x: Tensor, shape: Sequence[int]) -> Tensor:
    """x.permute, its dimensions merged as a product of matrices wants them: what needs it in order
    makes a copy.
    """
    before = x.shape
    node = record((x,), lambda gradient, _: [gradient.alias(before, is_dense=False)])
    out = x.alias(tuple(shape), is_dense=False)
    out.is_permuted = True
    return connect(out, node)
