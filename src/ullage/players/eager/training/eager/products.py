"""Products of matrices by cuBLAS."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ullage.log.category import Category
from ullage.players.eager.training.eager.autograd import Product, remember
from ullage.players.eager.training.eager.kernels import Kernel, Kind, paused
from ullage.players.eager.training.eager.tensor import DType, Tensor


def multiply(
    like: Tensor,
    shape: Sequence[int],
    dtype: DType | None = None,
    *,
    work: int = 0,
    product: Product = Product.BMM,
    batch: int = 1,
) -> Tensor:
    """A product of matrices: its result, beside which cuBLAS has its workspace while it runs.

    work: floating-point operations, two for each multiplication and addition.
    batch: how many products of matrices it is.
    """
    arena = like.storage.arena

    def make() -> Tensor:
        arena.count_work(work)
        with paused(arena, shape_product(like.dtype, shape, work, batch)):
            out = like.like(tuple(shape), dtype)
        if arena.blas_workspace_bytes:
            arena.take(arena.blas_workspace_bytes, Category.WORKSPACE)
        return out

    return remember(make, arena, product)


def shape_product(dtype: DType, shape: Sequence[int], work: int, batch: int = 1) -> Kernel:
    """The launch of a product with a result of that shape, by its floating-point operations."""
    columns = shape[-1]
    rows = prod(shape[:-1]) // batch
    length = work // (2 * batch * max(1, rows * columns))
    numbers = (rows, columns, max(1, length), batch)
    return Kernel(Kind.PRODUCT, (), numbers, dtype.name)
