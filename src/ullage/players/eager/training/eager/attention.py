"""scaled_dot_product_attention by the kernels that PyTorch chooses among, and attention by hand as
in transformers' eager_attention_forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from ullage.players.eager.training.eager.arena import Arena
from ullage.players.eager.training.eager.autocast import lower
from ullage.players.eager.training.eager.autograd import (
    Backward,
    Gradients,
    connect,
    keep,
    record,
    remember,
)
from ullage.players.eager.training.eager.functional import (
    add,
    contiguous,
    elementwise,
    matmul,
    repeat_heads,
    scale,
    softmax,
    to,
    transpose,
)
from ullage.players.eager.training.eager.functional import dropout as drop
from ullage.players.eager.training.eager.kernels import Kernel as Launch
from ullage.players.eager.training.eager.kernels import Kind, paused
from ullage.players.eager.training.eager.machine import Kernel
from ullage.players.eager.training.eager.reductions import sum_to
from ullage.players.eager.training.eager.tensor import BOOL, FLOAT32, INT64, DType, Tensor

_FLASH_ROWS: Final = 128  # flash attention's backward works on whole blocks of rows
_EFFICIENT_ROWS: Final = 32  # the sums of efficient attention are padded to a multiple
_CUDNN_TILE: Final = 128
_MASK_ROW: Final = 16  # elements to which the rows of a mask's gradient are padded
# Numbers of the two tensors from which dropout is made again; efficient attention, where there is
# dropout, keeps them in the host's memory.
SEEDS: Final = {Kernel.CUDNN: (1, 1), Kernel.FLASH: (2, 1), Kernel.EFFICIENT: (1, 1)}
_EFFICIENT_SPLITS: Final = 200  # blocks beyond which keys are not split further


@dataclass(frozen=True, slots=True)
class Heads:
    """Sizes: queries (batch, count, length, width), keys (batch, kv_count, kv_length, width)."""

    batch: int
    count: int
    kv_count: int
    length: int
    kv_length: int
    width: int
    value_width: int
    dtype: DType

    @property
    def is_grouped(self) -> bool:
        """Keys and values have fewer heads than queries."""
        return self.count != self.kv_count


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, *, dropout: float = 0.0
) -> Tensor:
    """F.scaled_dot_product_attention over (batch, heads, length, width), by the kernel that PyTorch
    takes on the machine. Keys and values may have fewer heads, values another width.

    mask: bool or of the queries' dtype; (batch, 1, length, kv_length). None: causal, or no mask.
    dropout: the probability that a weight is left out.
    """
    # transformers spreads grouped heads itself, where there is a mask or a model is traced
    if mask is not None or query.arena.is_compiled:
        key, value = _spread(key, query.shape[1]), _spread(value, query.shape[1])
    value, key, query = lower(value), lower(key), lower(query)
    heads, kernel = find_kernel(query, key, value, mask, dropout=dropout)
    mask = None if mask is None else _bias_of(mask, query.dtype)
    saved = (query, key, value) if mask is None else (query, key, value, mask)
    inputs = (query, key, value, mask)
    node = record(inputs, _backward_rule(inputs, heads, kernel), *saved)
    arena = query.arena
    seeds = () if kernel is Kernel.EFFICIENT and dropout else SEEDS[kernel]
    with paused(arena):
        random = [remember(partial(query.like, (size,), INT64), arena) for size in seeds]
    shape = (*query.shape[:3], heads.value_width)

    def make() -> Tensor:
        with paused(arena, _launch(arena, heads, kernel, has_mask=mask is not None)):
            return query.like(shape)

    out = remember(make, arena)
    # The layout is the query's; efficient attention's is always (batch, length, heads, width).
    out.is_permuted = query.is_permuted or kernel is Kernel.EFFICIENT
    out.is_dense = not out.is_permuted
    with paused(arena):
        sums = remember(lambda: query.like(sums_shape(heads, kernel), FLOAT32), arena)
    if kernel is Kernel.CUDNN:
        _assume_split(arena, heads)
    if node is not None:
        keep(node, out, sums, *random)
    return connect(out, node)


def attend_fully(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    dropout: float = 0.0,
    is_wide: bool = False,
) -> Tensor:
    """Attention of a library that has both: sdpa, or every score kept.

    is_wide: written out, the softmax is in float32.
    """
    if query.arena.is_attention_eager:
        return attend_eagerly(query, key, value, mask, dropout=dropout, is_wide=is_wide)
    return attend(query, key, value, mask, dropout=dropout)


def find_kernel(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, *, dropout: float = 0.0
) -> tuple[Heads, Kernel]:
    """The sizes of an attention, and the kernel that PyTorch takes for it."""
    batch, count, length, width = query.shape
    heads = Heads(
        batch, count, key.shape[1], length, key.shape[2], width, value.shape[3], query.dtype
    )
    kernel = query.arena.machine.attention(
        query.dtype,
        width,
        heads.value_width,
        has_mask=mask is not None,
        learns_mask=mask is not None and mask.needs_grad,
        has_dropout=dropout > 0,
    )
    return heads, kernel


def sums_shape(heads: Heads, kernel: Kernel) -> tuple[int, int, int]:
    """The shape of the logarithm of each row's sum, in float32."""
    is_padded = kernel is Kernel.EFFICIENT
    rows = _round_up(heads.length, _EFFICIENT_ROWS) if is_padded else heads.length
    return heads.batch, heads.count, rows


def take_scratch(kernel: Kernel, gradient: Tensor, heads: Heads) -> None:
    """Allocates the scratch of a kernel beside the gradients while it runs backward."""
    _SCRATCH[kernel](gradient, heads)


def attend_eagerly(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    has_cap: bool = False,
    is_wide: bool = True,
) -> Tensor:
    """eager_attention_forward of transformers: every score is kept. Gives a dense (batch, length,
    heads, width), seen as (batch, heads, length, width).

    bias: numbers for each head that are added before the mask.
    has_cap: scores are bounded by a tanh (attn_logit_softcapping).
    is_wide: the softmax is in float32.
    """
    times = query.shape[1] // key.shape[1]
    key, value = repeat_heads(key, times), repeat_heads(value, times)
    scores = scale(matmul(query, key, is_second_transposed=True))
    if has_cap:
        scores = scale(_tanh(scale(scores)))
    for summand in (bias, mask):
        if summand is not None:
            scores = add(scores, summand)
    weights = to(softmax(scores, FLOAT32 if is_wide else None), value.dtype)
    del scores
    out = matmul(drop(weights, dropout), value)
    return transpose(contiguous(transpose(out, 1, 2)), 1, 2)


def _tanh(x: Tensor) -> Tensor:
    return elementwise(x, saves_input=False, saves_output=True)


def _spread(x: Tensor, count: int) -> Tensor:
    """repeat_kv of transformers."""
    return repeat_heads(x, count // x.shape[1])


def _bias_of(mask: Tensor, dtype: DType) -> Tensor:
    """convert_boolean_attn_mask: zeros, filled where the mask is false."""
    if mask.dtype is not BOOL:
        return mask
    return mask.like(dtype=dtype)


def _backward_rule(inputs: Sequence[Tensor | None], heads: Heads, kernel: Kernel) -> Backward:
    """Gradients are laid out like the inputs, or as (batch, length, heads, width)."""
    # A mask's has all samples and heads, rows of whole 16s, and is summed.
    *three, mask = inputs
    known = [tensor for tensor in three if tensor is not None]
    needs_grad = [tensor.needs_grad for tensor in known]
    shapes = [tensor.shape for tensor in known]
    layouts = [tensor.is_permuted or kernel is Kernel.EFFICIENT for tensor in known]
    is_packed = kernel is Kernel.EFFICIENT and len({tensor.storage.index for tensor in known}) == 1
    has_mask = mask is not None  # the rule is not to hold the mask
    mask_shape = mask.shape if mask is not None and mask.needs_grad else None

    def rule(gradient: Tensor, _: Sequence[Tensor]) -> Gradients:
        arena = gradient.arena
        with paused(arena, _launch(arena, heads, kernel, has_mask=has_mask, is_backward=True)):
            return make(gradient)

    def make(gradient: Tensor) -> Gradients:
        tensors: list[Tensor | None] = []
        if is_packed:
            whole = gradient.like((3, *shapes[0]), heads.dtype)
            tensors += [whole.alias(shape, is_dense=False) for shape in shapes]
            del whole
        else:
            for shape, is_wanted in zip(shapes, needs_grad, strict=True):
                tensors.append(gradient.like(shape, heads.dtype) if is_wanted else None)
        for tensor, is_permuted in zip(tensors, layouts, strict=True):
            if tensor is not None:
                tensor.is_permuted, tensor.is_dense = is_permuted, not is_permuted and not is_packed
        if mask_shape is not None:
            row = _round_up(heads.kv_length, _MASK_ROW)
            tensors.append(gradient.like((heads.batch, heads.count, heads.length, row)))
        take_scratch(kernel, gradient, heads)
        if mask_shape is not None:
            of_all = tensors.pop()
            tensors.append(None if of_all is None else sum_to(of_all, mask_shape))
        return tensors

    return rule


def _launch(
    arena: Arena, heads: Heads, kernel: Kernel, *, has_mask: bool, is_backward: bool = False
) -> Launch | None:
    if arena.recorder is None:
        return None
    is_causal = arena.recorder.is_causal and not has_mask and heads.length == heads.kv_length
    numbers = (
        int(is_backward), heads.batch, heads.count, heads.kv_count, heads.length, heads.kv_length,
        heads.width, int(is_causal),
    )  # fmt: skip
    return Launch(Kind.ATTENTION, (), numbers, heads.dtype.name, kernel.value)


def _take_cudnn_scratch(gradient: Tensor, heads: Heads) -> None:
    """cudnn-frontend's share: a float accumulator of the queries' gradient, a sum of each row, and
    keys' and values' gradients for each query head before they are summed.

    Source: players/phantom/csrc/answers/cudnn_workspace.c, which says what the engine itself may
    add.
    """
    rows = heads.batch * heads.count * heads.length
    nbytes = rows * (heads.width + 1) * 4
    if heads.is_grouped:
        kv_rows = heads.batch * heads.count * heads.kv_length
        nbytes += kv_rows * (heads.width + heads.value_width) * heads.dtype.itemsize
    tiles = heads.batch * heads.count * _round_up(heads.length, _CUDNN_TILE)
    padded = tiles * (_round_up(heads.width, 64) + 1) * 4
    gradient.arena.assume(nbytes, nbytes, nbytes + padded)


def _assume_split(arena: Arena, heads: Heads) -> None:
    """cuDNN's forward kernel: keys that are split among blocks leave a float row and a sum each,
    where the blocks of rows do not fill the GPU. None is likely.
    """
    rows = heads.batch * heads.count
    splits = arena.machine.multiprocessors // max(rows * -(-heads.length // _CUDNN_TILE), 1)
    splits = min(splits, -(-heads.kv_length // _CUDNN_TILE))
    if splits > 1:
        arena.assume(0, 0, splits * rows * heads.length * (heads.value_width + 1) * 4)


def _take_flash_scratch(gradient: Tensor, heads: Heads) -> None:
    """Sums of rows and a float accumulator, both of whole blocks; for grouped heads the gradients
    of keys and values for each query head.

    Source: aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp, mha_bwd.
    """
    padded = _round_up(heads.length, _FLASH_ROWS)
    width = _round_up(heads.width, 32 if heads.width <= 128 else 64)
    batch, count = heads.batch, heads.count
    scratch = [
        gradient.like((batch, count, padded), FLOAT32),
        gradient.like((batch, padded, count, width), FLOAT32),
    ]
    if heads.is_grouped:
        shape = (batch, heads.kv_length, count, heads.width)
        scratch += [gradient.like(shape), gradient.like(shape)]
    del scratch


def _take_efficient_scratch(gradient: Tensor, heads: Heads) -> None:
    """Gradients of keys and values for each query head, sums of rows, and the kernel's workspace.

    Source: aten/src/ATen/native/transformers/cuda/attention_backward.cu,
    _efficient_attention_backward.
    """
    batch, count, length = heads.batch, heads.count, heads.length
    scratch = []
    if heads.is_grouped:
        scratch += [
            gradient.like((batch, heads.kv_length, count, heads.width)),
            gradient.like((batch, heads.kv_length, count, heads.value_width)),
        ]
    if heads.dtype is FLOAT32:
        products = gradient.like((batch, length, count, heads.value_width), FLOAT32)
        sums = gradient.like((batch, length, count), FLOAT32)
        scratch.append(gradient.like((batch, count, length), FLOAT32))
        del sums, products
    else:
        scratch.append(gradient.like((batch, count, length), FLOAT32))
    nbytes = _efficient_workspace(heads, gradient.arena.machine.capability)
    workspace = gradient.arena.take(nbytes)
    del workspace, scratch


def _efficient_workspace(heads: Heads, capability: tuple[int, int]) -> int:
    """Bytes of the backward kernel's workspace: the queries' gradient by blocks, each with a lock;
    where a tile of the result does not fit in registers, also accumulators of keys and values.

    Source: mem_eff_attention/kernel_backward.h (workspace_size) and kernels/cutlassB.h, of the
    kernels for compute capability 8.0 and later.
    """
    rows, columns, widest = _efficient_tile(heads, capability)
    blocks = -(-heads.length // rows) * -(-heads.width // columns)
    elements = blocks * (4 + rows * columns)
    is_half = heads.dtype is not FLOAT32
    if is_half and widest > rows:
        at_once = heads.batch * heads.count
        splits = max(min(-(-heads.kv_length // columns), _EFFICIENT_SPLITS // at_once), 1)
        widths = _round_up(heads.width, rows) + _round_up(heads.value_width, rows)
        elements += splits * columns * widths
    return heads.batch * heads.count * _round_up(elements, 4) * 4


def _efficient_tile(heads: Heads, capability: tuple[int, int]) -> tuple[int, int, int]:
    """Rows and columns of a block, and the widest head, of the kernel that is taken."""
    width = max(heads.width, heads.value_width)
    has_little_shared = capability in ((8, 6), (8, 9), (12, 0))
    if width <= 64:
        return 64, 64, 64
    if heads.dtype is FLOAT32 or width > 128:
        return (64 if has_little_shared else 128), 64, 128 if width <= 128 else 65536
    if has_little_shared:
        return (128, 64, 96) if width <= 96 else (64, 64, 128)
    return 128, 128, 128


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


_SCRATCH: Final = {
    Kernel.CUDNN: _take_cudnn_scratch,
    Kernel.FLASH: _take_flash_scratch,
    Kernel.EFFICIENT: _take_efficient_scratch,
}
