"""Sums over dimensions, and the scratch memory that PyTorch's reduction kernel takes for some."""

from __future__ import annotations

from math import prod
from typing import Final

from ullage.players.eager.training.eager.autocast import raise_, to
from ullage.players.eager.training.eager.autograd import connect, keep, record
from ullage.players.eager.training.eager.kernels import Kernel, Kind, launch
from ullage.players.eager.training.eager.machine import Machine
from ullage.players.eager.training.eager.tensor import FLOAT16, FLOAT32, DType, Tensor

_MAX_THREADS: Final = 512  # of a block; divided by the outputs that a thread has
_WARP: Final = 32
_FEW_VALUES, _MANY_VALUES = 16, 256  # of a thread
_ACCUMULATOR_BYTES: Final = 4


def fit(gradient: Tensor, shape: tuple[int, ...], dtype: DType) -> Tensor:
    """A gradient in its input's shape and dtype: the engine sums and casts (validate_outputs)."""
    if gradient.shape != shape:
        gradient = sum_to(gradient, shape)
    if gradient.dtype is not dtype:
        cast = gradient.like(dtype=dtype)
        launch(Kind.CAST, cast, gradient)
        return cast
    return gradient


def sum_to(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """x.sum_to_size(shape): sums what was broadcast. A view where only ones are left out."""
    outputs = prod(shape)
    if outputs == x.numel:
        return x.alias(shape, is_dense=x.is_dense)
    out = x.like(shape)
    launch(Kind.SUM, out, x)
    is_columns = x.shape[-1] == (shape[-1] if shape else 1) and x.shape[-1] > 1
    if is_columns and x.is_dense:
        sizes = scratch_of_columns(x.arena.machine, x.numel // outputs, outputs, x.dtype)
        scratch = [x.arena.take(size) for size in sizes]
        if scratch and x.arena.recorder is not None:  # blocks count themselves, from zero
            x.arena.recorder.add(Kernel(Kind.POINTWISE, (sizes[-1],), (sizes[-1] // 4,)))
        del scratch
    return out


def scratch_of_columns(machine: Machine, rows: int, columns: int, dtype: DType) -> tuple[int, ...]:
    """Bytes of the two scratch tensors of x.sum(0), x of (rows, columns) in order; () for none.

    Blocks of threads that share one output leave their sums in memory, and count themselves.
    Counts: `global_memory_size` and `semaphore_size`, with setReduceConfig, for a sum along the
    slower dimension.
    Ignores: storage that begins off a multiple of four elements.
    Error: none in the cases that PyTorch was asked for on the phantom.
    Source: aten/src/ATen/native/cuda/Reduce.cuh.
    """
    if dtype.itemsize > _ACCUMULATOR_BYTES:
        return ()
    vector = next(size for size in (4, 2, 1) if columns % size == 0)
    most = _MAX_THREADS // vector
    across, down = _power(columns // vector, most), _power(rows, most)
    width = min(across, _WARP)
    height = min(down, most // width)
    width = min(across, most // height)
    blocks = -(-columns // vector // width)
    values = rows
    if values < min(height * _FEW_VALUES, _MANY_VALUES):
        return ()
    values = -(-rows // height)
    num_blocks = machine.multiprocessors * (machine.threads_per_multiprocessor // (width * height))
    if values < _MANY_VALUES or blocks > num_blocks:
        return ()
    shares = max(
        min(-(-num_blocks // blocks), -(-values // _FEW_VALUES)), -(-values // _MANY_VALUES)
    )
    if shares <= 1:
        return ()
    return _ACCUMULATOR_BYTES * columns * shares * width * vector, 4 * blocks


def _power(number: int, most: int) -> int:
    """The largest power of two that is not above the number, nor above the most."""
    return most if number >= most else 1 << (max(number, 1).bit_length() - 1)


def mean(x: Tensor, dimension: int = -1) -> Tensor:
    """x.mean(dimension, keepdim=True): saves nothing; backward divides an expanded gradient."""
    shape = list(x.shape)
    shape[dimension] = 1
    before = x.shape
    node = record((x,), lambda gradient, _: [gradient.like(before)])
    out = x.like(tuple(shape))
    launch(Kind.SUM, out, x)
    return connect(out, node)


def deviation(x: Tensor) -> Tensor:
    """x.std(-1, keepdim=True): saves x and its result; backward finds x less the mean again."""

    def rule(gradient: Tensor, saved: object) -> list[Tensor | None]:
        scaled = gradient.like()
        distances = gradient.like(before)
        out = gradient.like(before)
        del scaled, distances
        return [out]

    before = x.shape
    node = record((x,), rule, x)
    out = x.like((*before[:-1], 1))
    launch(Kind.SUM, out, x)
    if node is not None:
        keep(node, out)
    return connect(out, node)


def total(x: Tensor) -> Tensor:
    """x.sum(-1, keepdim=True): saves nothing; backward expands, which takes no memory."""
    before = x.shape
    node = record((x,), lambda gradient, _: [gradient.alias(before, is_dense=False)])
    out = x.like((*before[:-1], 1))
    launch(Kind.SUM, out, x)
    return connect(out, node)


def softmax(x: Tensor, dtype: DType | None = None) -> Tensor:
    """softmax over the last dimension: saves its output; backward has a product of its size.

    dtype: of the output; the kernel itself converts float16 to float32, and nothing else.
    """
    if dtype is None and x.arena.autocast is not None:
        dtype = FLOAT32  # on autocast's list fp32_set_opt_dtype
    if dtype is not None and not (x.dtype is FLOAT16 and dtype is FLOAT32):
        x = to(x, dtype)
    before = x.dtype

    def rule(gradient: Tensor, _: object) -> list[Tensor | None]:
        out, product = gradient.like(dtype=before), gradient.like()
        launch(Kind.POINTWISE, product, gradient, product)
        launch(Kind.ROWS, out, product, product)
        del product
        return [out]

    node = record((x,), rule, *_input_of(x))
    out = x.like(dtype=dtype)
    launch(Kind.ROWS, out, x)
    if node is not None:
        keep(node, out)
    return connect(out, node)


# Until this version the formula of softmax's derivative named its input, for the dtype alone
# (_softmax_backward_data(grad, result, dim, self) in derivatives.yaml), which kept it.
_SAVES_INPUT_UNTIL: Final = (1, 11)


def _input_of(x: Tensor) -> tuple[Tensor, ...]:
    return (x,) if x.arena.machine.torch < _SAVES_INPUT_UNTIL else ()


def log_softmax(x: Tensor) -> Tensor:
    """log_softmax over the last dimension: saves its output; raised to float32 by autocast."""
    x = raise_(x)

    def rule(gradient: Tensor, _: object) -> list[Tensor | None]:
        out = gradient.like()
        launch(Kind.ROWS, out, gradient, gradient)
        return [out]

    node = record((x,), rule, *_input_of(x))
    out = x.like()
    launch(Kind.ROWS, out, x)
    if node is not None:
        keep(node, out)
    return connect(out, node)
