"""Tensors without values: a shape, a dtype, a storage that views share, and who made them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

from ullage.log.category import Category
from ullage.players.eager.training.eager.arena import Arena, Storage
from ullage.players.eager.training.eager.dtype import (
    BFLOAT16,
    BOOL,
    FLOAT16,
    FLOAT32,
    INT32,
    INT64,
    UINT8,
    DType,
    find_dtype,
)

if TYPE_CHECKING:
    from ullage.players.eager.training.eager.autograd import Node

__all__ = [
    "BFLOAT16",
    "BOOL",
    "FLOAT16",
    "FLOAT32",
    "INT32",
    "INT64",
    "UINT8",
    "DType",
    "find_dtype",
]

Shape = tuple[int, ...]


class Tensor:
    """A tensor on the device.

    Attributes:
        shape: sizes of its dimensions.
        dtype: type of its elements.
        storage: its memory, which views share; None where there are no bytes.
        node: the node of the graph that made it; None: a leaf, or it needs no gradient.
        needs_grad: requires_grad of PyTorch.
        is_dense: its elements fill the storage in order (contiguous()); a transposed view is not.
        is_permuted: its elements lie in another order than its dimensions do, whole or in part.
        is_view: it was made as a view of another; such a gradient is not added to in place.
        source: what it is cast from, where that is all that is needed to make it again.
        is_recomputed: where the model is compiled, it is made again from what else is kept.
        grad: gradient of a leaf after its backward pass.
    """

    __slots__ = (
        "__weakref__", "dtype", "grad", "is_dense", "is_permuted", "is_recomputed", "is_view",
        "needs_grad", "node", "shape", "source", "storage",
    )  # fmt: skip

    def __init__(
        self, shape: Shape, dtype: DType, storage: Storage, *, is_dense: bool = True
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.storage = storage
        self.is_dense = is_dense
        self.is_permuted = False
        self.is_view = False
        self.is_recomputed = False
        self.source: Tensor | None = None
        self.node: Node | None = None
        self.needs_grad = False
        self.grad: Tensor | None = None

    @property
    def arena(self) -> Arena:
        """Where its storage lives."""
        return self.storage.arena

    @property
    def numel(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Elements times their size; a view of a larger storage counts its own elements."""
        return prod(self.shape) * self.dtype.itemsize

    @property
    def is_whole(self) -> bool:
        """It holds each byte of its storage once: nothing is left out, nothing is expanded."""
        return self.nbytes == self.storage.arena.log.requested[self.storage.index]

    @property
    def is_expanded(self) -> bool:
        """Some elements are the same bytes."""
        return self.nbytes > self.storage.arena.log.requested[self.storage.index]

    def alias(self, shape: Shape | None = None, *, is_dense: bool = True) -> Tensor:
        """A tensor on the same storage, outside the graph."""
        view = Tensor(
            self.shape if shape is None else shape, self.dtype, self.storage, is_dense=is_dense
        )
        view.is_permuted = self.is_permuted and not is_dense
        view.is_view = True
        return view

    def detach(self) -> Tensor:
        """The same values, outside the graph."""
        same = self.alias(is_dense=self.is_dense)
        same.is_view = self.is_view
        return same

    def lay_out(self, *, is_permuted: bool) -> Tensor:
        """This, which is new, with its elements in order or not."""
        self.is_permuted = is_permuted
        self.is_dense = not is_permuted
        return self

    def like(self, shape: Shape | None = None, dtype: DType | None = None) -> Tensor:
        """New memory of the same shape and dtype, or of those given.

        Without a shape the layout is the same, too: a transposed tensor stays one (empty_like).
        """
        arena, dtype = self.storage.arena, dtype or self.dtype
        tensor = empty(arena, self.shape if shape is None else shape, dtype)
        if shape is None:
            tensor.is_permuted = self.is_permuted
            tensor.is_dense = not self.is_permuted
        if arena.recorder is not None:
            arena.recorder.wrote(tensor)
        return tensor


def empty(
    arena: Arena, shape: Sequence[int], dtype: DType, category: Category | None = None
) -> Tensor:
    """New memory of a shape."""
    sizes = tuple(shape)
    return Tensor(sizes, dtype, arena.take(prod(sizes) * dtype.itemsize, category, dtype.name))
