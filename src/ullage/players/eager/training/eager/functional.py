"""PyTorch's operators, by what they allocate, save and hand back.

Each follows its formula in PyTorch's derivatives.yaml and FunctionsManual.cpp: what is named there
as saved is saved here, and each intermediate of an expression lives until the expression ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ullage.log.category import Category
from ullage.players.eager.training.eager.autocast import lower, raise_, to
from ullage.players.eager.training.eager.autograd import (
    Gradients,
    Product,
    connect,
    drop_remade,
    keep,
    record,
    remember,
)
from ullage.players.eager.training.eager.kernels import Kernel, Kind, launch, paused
from ullage.players.eager.training.eager.reductions import (
    deviation,
    fit,
    log_softmax,
    mean,
    softmax,
    sum_to,
)
from ullage.players.eager.training.eager.shapes import (
    cat,
    contiguous,
    expand,
    in_order,
    narrow,
    repeat_heads,
    reshape,
    split,
    transpose,
    view,
)
from ullage.players.eager.training.eager.tensor import BOOL, FLOAT32, DType, Tensor

__all__ = [
    "cat",
    "contiguous",
    "deviation",
    "expand",
    "log_softmax",
    "mean",
    "narrow",
    "repeat_heads",
    "reshape",
    "softmax",
    "split",
    "to",
    "transpose",
    "view",
]


def _promote(first: Tensor, second: Tensor) -> DType:
    return _wider(first.dtype, second.dtype)


def _wider(first: DType, second: DType) -> DType:
    """The wider dtype of two operands; bfloat16 and float16 never occur together."""
    if first.is_floating != second.is_floating:
        return first if first.is_floating else second
    return first if first.itemsize >= second.itemsize else second


def _result(first: Tensor, second: Tensor) -> Tensor:
    """New memory for an operation of two: laid out like the first that is not broadcast."""
    shape = broadcast(first.shape, second.shape)
    guide = first if first.shape == shape else second
    out = first.like(shape, _promote(first, second))
    out.is_permuted = guide.is_permuted and guide.shape == shape
    out.is_dense = not out.is_permuted
    return out


def _fit_each(
    gradients: list[Tensor | None], shapes: Sequence[tuple[int, ...]], dtypes: Sequence[DType]
) -> list[Tensor | None]:
    """Gradients in the shapes and dtypes of their inputs; each is freed once it is summed."""
    for place, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True)):
        gradient = gradients[place]
        if gradient is not None:
            gradients[place] = fit(gradient, shape, dtype)
        del gradient
    return gradients


def broadcast(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of two together."""
    if first == second:
        return first
    longer, shorter = (first, second) if len(first) >= len(second) else (second, first)
    padded = (1,) * (len(longer) - len(shorter)) + shorter
    return tuple(max(size, other) for size, other in zip(longer, padded, strict=True))


# ------------------------------------------------------------------------------- element by element


def _lasting(saved: Sequence[Tensor]) -> list[Tensor]:
    """The tensors that an element-wise operator saves: compiled, not what is made again from what
    else is kept, and what a cast was made from instead of it.
    """
    return [tensor.source or tensor for tensor in saved if not tensor.is_recomputed]


def _recomputed(out: Tensor) -> Tensor:
    """The output of an element-wise operator, which a compiled backward pass makes again."""
    out.is_recomputed = out.arena.is_compiled
    return out


def add(first: Tensor, second: Tensor, *, in_place: bool = False) -> Tensor:
    """first + second (also minus), or first += second: saves nothing, hands its gradient to
    both.
    """
    shapes, dtypes = (first.shape, second.shape), (first.dtype, second.dtype)
    needs_grad = first.needs_grad, second.needs_grad

    def rule(gradient: Tensor, _: Sequence[Tensor]) -> Gradients:
        return [
            fit(gradient.detach(), shape, dtype) if is_wanted else None
            for shape, dtype, is_wanted in zip(shapes, dtypes, needs_grad, strict=True)
        ]

    node = record((first, second), rule)
    return connect(first.detach() if in_place else _result(first, second), node)


def sub(first: Tensor, second: Tensor) -> Tensor:
    """first - second: saves nothing; the second's gradient is a new tensor, negated."""
    shapes, dtypes = (first.shape, second.shape), (first.dtype, second.dtype)
    needs_grad = first.needs_grad, second.needs_grad

    def rule(gradient: Tensor, _: Sequence[Tensor]) -> Gradients:
        of_second = gradient.like() if needs_grad[1] else None
        return _fit_each([gradient.detach() if needs_grad[0] else None, of_second], shapes, dtypes)

    node = record((first, second), rule)
    return connect(_result(first, second), node)


def mul(first: Tensor, second: Tensor) -> Tensor:
    """first * second: saves each where the other needs a gradient."""
    needs_grad = first.needs_grad, second.needs_grad
    shapes, dtypes = (first.shape, second.shape), (first.dtype, second.dtype)
    saved = [
        tensor for tensor, is_wanted in zip((second, first), needs_grad, strict=True) if is_wanted
    ]  # fmt: skip

    others = second.dtype, first.dtype

    def rule(gradient: Tensor, saved: Sequence[Tensor]) -> Gradients:
        products: list[Tensor | None] = [
            gradient.like(dtype=_wider(gradient.dtype, other)) if is_wanted else None
            for is_wanted, other in zip(needs_grad, others, strict=True)
        ]
        drop_remade(saved)
        return _fit_each(products, shapes, dtypes)

    node = record((first, second), rule, *_lasting(saved))
    return _recomputed(connect(_result(first, second), node))


def div(first: Tensor, second: Tensor) -> Tensor:
    """first / second: saves both; -grad * (first / second / second) is the divisor's gradient."""
    shapes, dtypes = (first.shape, second.shape), (first.dtype, second.dtype)

    def rule(gradient: Tensor, _: Sequence[Tensor]) -> Gradients:
        of_first = gradient.like()
        negated, ratio = gradient.like(), gradient.like()
        ratio = ratio.like()
        of_second = gradient.like()
        del negated, ratio
        return _fit_each([of_first, of_second], shapes, dtypes)

    node = record((first, second), rule, *_lasting((second, first)))
    return _recomputed(connect(_result(first, second), node))


def clone(x: Tensor) -> Tensor:
    """x.clone(): hands its gradient on."""
    node = record((x,), lambda gradient, _: [gradient])
    return connect(x.like(x.shape), node)


def scale(x: Tensor) -> Tensor:
    """x times, or divided by, a number: saves nothing; the gradient is a new tensor."""
    node = record((x,), lambda gradient, _: [gradient.like()])
    return _recomputed(connect(x.like(), node))


neg = scale


def scale_in_place(x: Tensor, *by: Tensor) -> Tensor:
    """x *= a number, of which a tensor is saved, or masked_fill_: the gradient is a new tensor."""
    node = record((x,), lambda gradient, _: [gradient.like()], *by)
    return connect(x.detach(), node)


def shift(x: Tensor) -> Tensor:
    """x plus a number: saves nothing; hands its gradient on."""
    node = record((x,), lambda gradient, _: [gradient])
    return _recomputed(connect(x.like(), node))


def elementwise(
    x: Tensor, *, saves_input: bool = True, saves_output: bool = False, num_temporaries: int = 0
) -> Tensor:
    """Element by element, backward fused: gelu, silu (input), tanh, sigmoid, exp, relu (output)."""

    def rule(gradient: Tensor, _: Sequence[Tensor]) -> Gradients:
        scratch = [gradient.like() for _ in range(num_temporaries)]
        out = gradient.like()
        del scratch
        return [out]

    is_compiled = x.arena.is_compiled
    node = record((x,), rule, *(_lasting((x,)) if saves_input or is_compiled else ()))
    out = x.like()
    if node is not None and saves_output and not is_compiled:
        keep(node, out)
    return _recomputed(connect(out, node))


def pow2(x: Tensor) -> Tensor:
    """x.pow(2): saves x; backward is grad * (2 * x.pow(1)), of which each factor is a tensor."""
    x = raise_(x)

    dtype = x.dtype

    def rule(gradient: Tensor, _: Sequence[Tensor]) -> Gradients:
        power = gradient.like(dtype=dtype)
        doubled = gradient.like(dtype=dtype)
        out = gradient.like()
        launch(Kind.POINTWISE, power, power)
        launch(Kind.POINTWISE, doubled, power)
        launch(Kind.POINTWISE, out, gradient, doubled)
        del power, doubled
        return [out]

    node = record((x,), rule, *_lasting((x,)))
    return _recomputed(connect(x.like(), node))


def rsqrt(x: Tensor) -> Tensor:
    """x.rsqrt(): saves its result."""
    return elementwise(raise_(x), saves_input=False, saves_output=True, num_temporaries=2)


def dropout(x: Tensor, probability: float) -> Tensor:
    """dropout: nothing at probability 0 or in evaluation; else saves a mask of one byte each."""
    if not probability or not x.arena.is_training:
        return x

    def rule(gradient: Tensor, _: Sequence[Tensor]) -> Gradients:
        return [gradient.like()]

    node = record((x,), rule)
    out = x.like()
    mask = x.like(dtype=BOOL)
    if node is not None and not x.arena.is_compiled:  # else it is drawn again
        keep(node, mask)
    return _recomputed(connect(out, node))


# ------------------------------------------------------------------------------------------ algebra


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias; x may have any number of dimensions, and is copied if not in order."""
    bias = None if bias is None else lower(bias)
    weight, x = lower(weight), lower(x)  # the last argument is cast first
    # addmm, whose gradients come in another order than mm's; else the bias is added in place
    is_fused = bias is not None and x.is_dense
    x = in_order(x)
    needs_grad = x.needs_grad, weight.needs_grad, bias is not None and bias.needs_grad
    saved = [
        tensor for tensor, is_wanted in ((weight, needs_grad[0]), (x, needs_grad[1])) if is_wanted
    ]
    shape, sizes, width = x.shape, weight.shape, weight.shape[0]
    work = 2 * x.numel * width

    def rule(gradient: Tensor, saved: Sequence[Tensor]) -> Gradients:
        gradient = in_order(gradient)
        of_input = multiply(gradient, shape, work=work) if needs_grad[0] and is_fused else None
        of_weight = multiply(gradient, sizes, work=work) if needs_grad[1] else None
        if needs_grad[0] and not is_fused:
            of_input = multiply(gradient, shape, work=work)
        if of_input is not None and len(shape) > 2:
            of_input = of_input.alias()  # what was computed is a matrix
        if of_weight is not None:
            of_weight = of_weight.alias()  # what was computed is its transpose
        drop_remade(saved)
        of_bias = sum_to(gradient, (width,)) if needs_grad[2] else None
        return [of_input, of_weight, of_bias]

    node = record((x, weight, bias), rule, *saved)
    if not is_fused:
        out = multiply(x, (*shape[:-1], width), work=work, product=Product.MM)
        return connect(out, node)

    def make() -> Tensor:
        x.arena.count_work(work)
        with paused(x.arena, shape_product(x.dtype, (*shape[:-1], width), work)):
            out = x.like((*shape[:-1], width))
        x.arena.take(_LT_WORKSPACE_BYTES, Category.WORKSPACE)
        return out

    return connect(remember(make, x.arena, Product.ADDMM), node)


# cuBLASLt adds the bias as it multiplies, with a workspace of its own (CUDABlas.cpp).
_LT_WORKSPACE_BYTES = 1_048_576


def matmul(first: Tensor, second: Tensor, *, is_second_transposed: bool = False) -> Tensor:
    """A batched product (bmm) of (..., n, k) and (..., k, m), or (..., m, k) if transposed.

    Operands whose leading dimensions are not in order are copied; rows may be far apart.
    """
    first, second = _stacked(lower(first)), _stacked(lower(second))
    needs_grad = first.needs_grad, second.needs_grad
    shapes = first.shape, second.shape
    saved = [
        tensor for tensor, is_wanted in zip((second, first), needs_grad, strict=True) if is_wanted
    ]

    def rule(gradient: Tensor, _: Sequence[Tensor]) -> Gradients:
        gradient = _stacked(gradient)
        of_second, of_first = (
            multiply(gradient, shapes[place], work=work, batch=batch) if needs_grad[place] else None
            for place in (1, 0)
        )
        return [
            product if product is None else product.alias() for product in (of_first, of_second)
        ]

    columns = second.shape[-2] if is_second_transposed else second.shape[-1]
    work, batch = 2 * first.numel * columns, prod(first.shape[:-2])
    node = record((first, second), rule, *saved)
    return connect(multiply(first, (*first.shape[:-1], columns), work=work, batch=batch), node)


def solve_triangular(matrix: Tensor, x: Tensor) -> Tensor:
    """linalg.solve_triangular of many systems: saves the matrix and the result.

    cuBLAS gets a pointer to each matrix and to each result. Source: FunctionsManual.cpp
    (linalg_solve_triangular_backward), BatchLinearAlgebra.cpp (triangular_solve_batched_cublas).
    """
    shape, count = matrix.shape, prod(matrix.shape[:-2])
    work = x.numel * shape[-1]

    def solve(right: Tensor) -> Tensor:
        arena = right.arena
        arena.count_work(work)
        with paused(arena, shape_product(right.dtype, right.shape, work, count)):
            out = right.like(right.shape)
            pointers = [arena.take(_POINTER_BYTES * count) for _ in range(2)]
        arena.take(arena.blas_workspace_bytes, Category.WORKSPACE)
        del pointers
        return out

    def rule(gradient: Tensor, _: Sequence[Tensor]) -> Gradients:
        of_x = solve(gradient)
        product = multiply(of_x, shape, work=2 * work, batch=count)
        negated = product.like()
        del product
        return [negated.like(), of_x]

    node = record((matrix, x), rule, matrix)
    out = solve(x)
    if node is not None:
        keep(node, out)
    return connect(out, node)


_POINTER_BYTES = 8


def _stacked(x: Tensor) -> Tensor:
    """Matrices one after the other, as bmm reads them."""
    return contiguous(x) if x.is_permuted or x.is_expanded else x


def embedding(indices: Tensor, weight: Tensor, *, rows: int | None = None) -> Tensor:
    """Rows of a table: saves the indices; the gradient of the table is dense.

    rows: rows of the gradient; None: as many as the table has.
    """
    sizes = (rows or weight.shape[0], weight.shape[1])

    def rule(gradient: Tensor, saved: Sequence[Tensor]) -> Gradients:
        count = prod(saved[0].shape)
        if count <= _SORTED_FROM:
            out = gradient.like(sizes)
            launch(Kind.POINTWISE, out)
            launch(Kind.LOOKUP, gradient, gradient, saved[0])
            return [out]
        gradient = in_order(gradient)
        scratch = [saved[0].like() for _ in range(_SORTED_TENSORS)]
        out = gradient.like(sizes)
        launch(Kind.POINTWISE, out)
        segments = count // _SEGMENT_ROWS + min(count, sizes[0])
        scratch += [gradient.like((segments, 2)), gradient.like((segments, sizes[1]), FLOAT32)]
        del scratch
        return [out]

    node = record((weight,), rule, indices)
    out = weight.like((*indices.shape, sizes[-1]))
    launch(Kind.LOOKUP, out, indices)
    return connect(out, node)


# embedding_dense_backward sorts more indices than _SORTED_FROM, in _SORTED_TENSORS tensors like
# them, and sums in float32 the rows of each run of at most _SEGMENT_ROWS equal indices. Source:
# aten/src/ATen/native/cuda/Embedding.cu and EmbeddingBackwardKernel.cu.
_SORTED_FROM = 3072
_SORTED_TENSORS = 6
_SEGMENT_ROWS = 10


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """native_layer_norm: saves its input, a mean and a reciprocal deviation for each row."""
    x = raise_(x)
    weight, bias = (None if tensor is None else raise_(tensor) for tensor in (weight, bias))
    sizes = None if weight is None else weight.shape
    has_bias = bias is not None

    is_dense = x.is_dense

    def rule(gradient: Tensor, _: Sequence[Tensor]) -> Gradients:
        copies = [gradient.like() for is_usable in (gradient.is_dense, is_dense) if not is_usable]
        out = gradient.like(gradient.shape)
        weights = None if sizes is None else gradient.like(sizes)
        biases = gradient.like(sizes) if has_bias else None
        launch(Kind.ROWS_BACKWARD, out, gradient, gradient)
        if weights is not None:
            launch(Kind.ROWS_BACKWARD, weights, gradient, gradient)
        del copies
        return [out, weights, biases]

    weights = (weight,) if weight is not None else ()
    node = record((x, weight, bias), rule, *_lasting((x,)), *weights)
    copy = None if is_dense else x.like()  # what is not in order, the kernel gets a copy of
    out = x.like(x.shape)
    rows = (*x.shape[:-1], 1)
    means, deviations = x.like(rows, FLOAT32), x.like(rows, FLOAT32)
    launch(Kind.ROWS, out, x)
    del copy
    if node is not None:
        keep(node, means, deviations)
    return _recomputed(connect(out, node))


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
