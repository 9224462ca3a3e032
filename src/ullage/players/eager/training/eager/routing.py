"""The operators of mixtures of experts: the highest scores, rows by number, products by group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ullage.players.eager.training.eager.autograd import Gradients, connect, record
from ullage.players.eager.training.eager.kernels import Kernel, Kind, paused
from ullage.players.eager.training.eager.reductions import fit
from ullage.players.eager.training.eager.tensor import BOOL, INT64, Tensor

_SORTING: Final = 5  # tensors like the indices, that index_put sorts them with


def highest(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """x.topk(count): values and their places, (rows, count) each; saves the places."""
    before = x.shape
    values_shape = (*before[:-1], count)
    values = x.like(values_shape)
    places = x.like(values_shape, INT64)
    node = record((x,), lambda gradient, _: [gradient.like(before)], places)
    return connect(values, node), places


def take_rows(x: Tensor, rows: Tensor) -> Tensor:
    """x[rows]: saves the numbers of the rows; backward adds to zeros, row by row, sorted.

    Source: aten/src/ATen/native/cuda/Indexing.cu, index_put_with_sort_kernel.
    """
    before = x.shape

    def rule(gradient: Tensor, saved: Sequence[Tensor]) -> Gradients:
        out = gradient.like(before)
        out.is_view = True  # a second gradient is not added to it in place
        scratch = [saved[0].like() for _ in range(_SORTING)]
        del scratch
        return [out]

    node = record((x,), rule, rows)
    return connect(x.like((*rows.shape, *before[1:])), node)


def grouped_product(x: Tensor, weight: Tensor, *, is_transposed: bool = False) -> Tensor:
    """grouped_mm: rows (rows, inputs), sorted by group, times the matrix of their group.

    weight: (groups, outputs, inputs), or (groups, inputs, outputs) where is_transposed.
    """
    shapes = x.shape, weight.shape
    width = weight.shape[2] if is_transposed else weight.shape[1]
    needs_grad = x.needs_grad, weight.needs_grad
    saved = [tensor for tensor, is_wanted in zip((weight, x), needs_grad, strict=True) if is_wanted]

    def rule(gradient: Tensor, _: Sequence[Tensor]) -> Gradients:
        of_weight = of_rows = None
        if needs_grad[1]:
            with paused(gradient.arena, _launch(*shapes, width, is_weight=True)):
                of_weight = gradient.like(shapes[1])
        if needs_grad[0]:
            with paused(gradient.arena, _launch(*shapes, width, is_backward=True)):
                of_rows = gradient.like(shapes[0])
        return [of_rows, of_weight]

    node = record((x, weight), rule, *saved)
    with paused(x.arena, _launch(*shapes, width)):
        out = x.like((x.shape[0], width))
    return connect(out, node)


def _launch(
    rows: tuple[int, ...],
    weight: tuple[int, ...],
    width: int,
    *,
    is_weight: bool = False,
    is_backward: bool = False,
) -> Kernel:
    """A grouped product's launch: rows, columns, length, groups; whether it is of the weights."""
    columns, length = (rows[1], width) if is_backward else (width, rows[1])
    numbers = (rows[0], columns, length, weight[0], int(is_weight))
    return Kernel(Kind.GROUPED, (), numbers, "bfloat16")


def place_rows(x: Tensor, rows: Tensor) -> Tensor:
    """empty_like(x), and [rows] = x: saves the numbers of the rows."""
    node = record((x,), lambda gradient, _: [gradient.like()], rows)
    return connect(x.like(), node)


def sum_second(x: Tensor) -> Tensor:
    """x.sum(1) of (rows, count, width): backward expands, which takes no memory."""
    before = x.shape
    node = record((x,), lambda gradient, _: [gradient.alias(before, is_dense=before[1] == 1)])
    return connect(x.like((before[0], before[2])), node)


def sum_groups(x: Tensor, size: int) -> Tensor:
    """x.view(-1, size, width).sum(1): backward copies what it expands."""
    before = x.shape
    node = record((x,), lambda gradient, _: [gradient.like(before)])
    return connect(x.like((before[0] // size, before[1])), node)


def fill_parts(parts: Sequence[Tensor]) -> Tensor:
    """new_empty, and a copy_ of each part into its share of the last dimension."""
    widths = [part.shape[-1] for part in parts]
    out = parts[0].like((*parts[0].shape[:-1], sum(widths)))
    for part in parts:
        fill(out, part)
    return out


def fill(out: Tensor, part: Tensor, summed: tuple[int, ...] | None = None) -> None:
    """A copy_ into a share of a tensor, which takes over its history (CopySlices): in backward it
    clones the gradient, and the share of the clone, which it sets to zero.

    summed: the share's shape, where the part is added to it instead.
    """
    shape, dtype = part.shape, part.dtype

    def rule(gradient: Tensor, _: Sequence[Tensor]) -> Gradients:
        rest = gradient.like()
        own = rest.like(summed or shape)
        if summed is None:
            rest.like(shape)
        return [rest, fit(own, shape, dtype)]

    connect(out, record((out, part), rule))


def clamp(x: Tensor, *, num_bounds: int) -> Tensor:
    """x.clamp(...): saves its input; backward compares it with each bound."""

    def rule(gradient: Tensor, saved: Sequence[Tensor]) -> Gradients:
        inside = [saved[0].like(saved[0].shape, BOOL) for _ in range(num_bounds)]
        out = gradient.like()
        del inside
        return [out]

    node = record((x,), rule, x)
    return connect(x.like(), node)


def repeat_rows(x: Tensor, times: int) -> Tensor:
    """x.repeat(times, 1): a copy; backward sums."""
    before = x.shape
    node = record((x,), lambda gradient, _: [gradient.like(before)])
    return connect(x.like((times * before[0], *before[1:])), node)


def sum_first(x: Tensor) -> Tensor:
    """x.sum(0): backward expands, which takes no memory."""
    before = x.shape
    node = record((x,), lambda gradient, _: [gradient.alias(before, is_dense=False)])
    return connect(x.like(before[1:]), node)
