"""The bytes that a kernel reads and writes, by its rule, its grid and its operands.

    traffic_of(launch)   # a Traffic, and what is assumed of it

A launch tells of each block of the allocator how much lies behind the address that it was handed:
at most what it touches there. The grid and the mangled name tell more: how many numbers an
elementwise kernel has, of which size, how many operands, how many chunks of a list of tensors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from ullage.clock.costs.kernel_names import Rule, bare_name
from ullage.clock.costs.traffic import Traffic
from ullage.clock.given_work import KernelLaunch

_MOST_OPERANDS: Final = 6
# Numbers of a thread: 4 before torch 2.7, and with strides; later 8, and 16 of one byte.
# Source: pytorch, aten/src/ATen/native/cuda/CUDALoops.cuh, elems_per_thread, thread_work_size.
_NUMBERS_OF_A_THREAD: Final = (4, 8, 16)
# Inductor's blocks of up to 1,024 numbers have four or eight warps; small ones fewer of both.
_NUMBERS_OF_A_THREAD_IN_TRITON: Final = (4, 8, 2, 16, 1)
_STRIDED: Final = re.compile(r"elementwise_kernelILi\d+ELi(\d+)E")
_POINTERS: Final = re.compile(r"(?:array|Array)IPcLi?m?(\d+)E")
_SIZES: Final = (1, 2, 4, 8, 16)
# Of larger operands PyTorch computes piece by piece, each within reach of 32 bits; a piece has at
# least a quarter of that. Source: pytorch, aten/src/ATen/TensorIterator.cpp,
# can_use_32bit_indexing and with_32bit_indexing, which halves until it fits.
_REACH: Final = 1 << 31
_LEAST_PIECE: Final = _REACH // 4
# A block may be larger than its tensor: the allocator leaves up to 1 MiB at its end.
_BLOCK_SLACK: Final = 1 << 20
_LAMBDA: Final = re.compile(r"EUl([abdfhijlmst]+)E_")
# Numbers of 16 bits on an H100: 2.89 TB/s with accesses of 16 bytes and 2.55 with eight, where 32
# bits reach 3.05. Source: pytorch, pull requests 141959 and 145746, gelu of 2^29 numbers. Casts are
# assumed to be as slow (pull request 195542 has 1.1 TB/s for an A100 of unknown size).
_HALF_WIDE, _HALF_NARROW = 1.05, 1.2
# A bias added to each row is 2.2 times slower than operands of one shape on an H200 (tile-ai/
# TileOPs, pull request 537); copies with strides are assumed to lie between.
_BROADCAST_SLOWER, _STRIDED_SLOWER = 2.0, 1.4
# Layer norm on an H100 reaches 0.72 to 0.8 of the stated bandwidth forward (2.4 to 2.7 TB/s, in
# 16 bits); with its backward pass 0.45 on an A100 (pytorch, pull request 87445, 8192 x 4096) and
# backward alone 0.5 on a GB300 (meta-pytorch/KernelAgent, pull request 133), by the bytes of its
# two kernels. Streams reach 0.77 to 0.9. Others are assumed to be as its forward pass.
_ROWS_SLOWER, _NORM_BACKWARD_SLOWER = 1.2, 1.7
_NORM_BACKWARD: Final = re.compile(
    r"grad_input|GammaBeta|[nN]orm\w*(?:Backward|backward)|InternalGradients|cuComputePartGrad"
)
# Inductor's looped reductions: 0.5 to 0.9 of hand-tuned kernels that stream. Source: PyTorch blog,
# "SOTA normalization performance with torch.compile".
_LOOP_SLOWER, _PERSISTENT_SLOWER = 1.3, 1.1
# Bookkeeping: what a thread moves at once, and the sum of eight experts' results.
_WIDE, _BUFFER_TIMES = 16, 10
# Numbers of a chunk. Source: pytorch, MultiTensorApply.cuh, kChunkSize.
_CHUNK: Final = 65536
_FULL_CHUNKS: Final = 0.9
_DEPTH: Final = re.compile(r"TensorList\w*Metadata(?:I\w*?Li|ILi)(\d+)E")
_FOREACH_FUNCTOR: Final = re.compile(r"Functor\w*?Li(\d+)ELi(\d+)ELi(\d+)E")
_FUNCTOR_TYPE: Final = re.compile(r"FunctorI(N3c10\d+\w+?E|[a-z])")
_FUSED: Final = re.compile(r"Fused(Adam|Sgd|Adagrad)MathFunctor|Fused(Adam|Sgd|Adagrad)")
_ITEMSIZES: Final = (
    (re.compile(r"complexId|7complexId"), 16),
    (re.compile(r"[IE_v]d[EdNLJS_]|Uld|clEvEUld"), 8),
    (re.compile(r"[IE_v]l[ElNLJS_]|Ull"), 8),
    (re.compile(r"[IE_v][fij][EfijNLJS_]|Ul[fij]"), 4),
    (re.compile(r"Half|BFloat16|Uls"), 2),
)
# thread_work_size in ATen/native/cuda/thread_constants.h, and a complex number of two doubles.
_BY_NUMBER: Final = re.compile(r"_scatter_gather_elementwise|index_elementwise_kernel")
_NUMBERS_OF_THREAD, _MOST_ITEM_BYTES = 8, 16
_ROWS_FUSED: Final = re.compile(r"embedding|index|gather|scatter|nll_loss|slice_scatter|select")
_NAMELESS: Final = re.compile(r"^triton_[a-z]+_fused_\d+$")
_WHOLE_ROWS: Final = re.compile(r"softmax|logsumexp|exp_|amax")


class Moves(NamedTuple):
    """Bytes, what is assumed of them (empty: nothing), and how much slower than a stream they
    move.
    """

    traffic: Traffic
    note: str
    slower: float = 1.0


def traffic_of(launch: KernelLaunch, rule: Rule) -> Moves:
    """The bytes of a kernel by its rule."""
    return _COUNTERS.get(rule, _once)(launch)


def _sum(launch: KernelLaunch) -> int:
    """The bytes of a kernel's operands. Of PyTorch's own, blocks behind the sixth are taken as such
    that an earlier call left in the structures of arguments; compiled kernels may have many.
    """
    if launch.name.startswith("_Z"):
        return sum(launch.operand_bytes[:_MOST_OPERANDS])
    return sum(launch.operand_bytes) + launch.other_bytes


def _elementwise(launch: KernelLaunch) -> Moves:
    """As many operands as the name says, each with all numbers: where fewer blocks fit, operations
    are in place, and read and write the same.
    """
    pointers = _POINTERS.search(launch.name)
    count = int(pointers[1]) if pointers else _count(launch.name)
    piece = _piece(launch)
    if piece:
        likely = count * piece
        note = "a piece of operands beyond the reach of 32 bits"
        return Moves(Traffic.of(likely, 0.75, 1.35), note, _half_precision(launch.name))
    sizes = _fitting(launch, _NUMBERS_OF_A_THREAD)[:count]
    in_place = [sizes[0]] * (count - len(sizes)) if sizes else []
    if not sizes:
        return _once(launch)
    likely = float(sum(sizes) + sum(in_place))
    slower = _half_precision(launch.name)
    if pointers:
        return Moves(Traffic(0.97 * likely, likely, likely), "", slower)
    note = "the number of operands by what is computed"
    return Moves(Traffic(sum(sizes), likely, likely), note, slower)


def _piece(launch: KernelLaunch) -> float:
    """The bytes of an operand of a piece, by the grid: the allocator's blocks have what is left of
    whole tensors. 0: it is none. Casts have numbers of two sizes; the mean.
    """
    if max(launch.operand_bytes[:_MOST_OPERANDS], default=0) <= _REACH:
        return 0.0
    itemsize = float(_largest_itemsize(launch.name))
    if "converting_copy" in launch.name and itemsize == 4 and "3c10" in launch.name:
        itemsize = 3.0
    threads = launch.num_blocks * launch.block_threads
    for number in sorted(_NUMBERS_OF_A_THREAD, reverse=True):
        num_bytes = threads * number * itemsize
        if _LEAST_PIECE <= num_bytes <= _REACH:
            return num_bytes
    return 0.0


def _half_precision(name: str) -> float:
    """How much slower than 32 bits: numbers of 16 bits, a little with accesses of 16 bytes (eight
    numbers, from torch 2.7 on) and more with eight; and casts, which are not vectorised.
    """
    if "vectorized_elementwise_kernelILi8E" in name:
        return _HALF_WIDE
    is_half = "BFloat16" in name or "Half" in name
    return _HALF_NARROW if is_half or "unrolled_elementwise" in name else 1.0


def _strided(launch: KernelLaunch) -> Moves:
    """Operands may be broadcast, and have fewer numbers.

    Assumes: the rates of strided and of broadcast operands (see above).
    """
    match = _STRIDED.search(launch.name)
    per_thread = (int(match[1]),) if match else _NUMBERS_OF_A_THREAD
    count = _count(launch.name)
    sizes = _fitting(launch, per_thread)[:count]
    if not sizes:
        return _once(launch)
    full = float(sum(sizes) + sizes[0] * (count - len(sizes)))
    likely = full if launch.num_operands < count else float(sum(sizes))
    is_broadcast = launch.num_operands >= count > len(sizes)
    slower = _BROADCAST_SLOWER if is_broadcast else _STRIDED_SLOWER
    note = f"strided access {slower} times slower, assumed"
    return Moves(Traffic(0.97 * sum(sizes), likely, full), note, slower)


def _fitting(launch: KernelLaunch, per_thread: Sequence[int]) -> list[int]:
    """The bytes of the operands that have as many numbers as the grid, in their order, by the
    numbers of a thread that fit most of them. None fits: all, clipped to eight bytes a number.
    """
    threads = launch.block_threads
    best: list[int] = []
    for number in per_thread:
        most = launch.num_blocks * threads * number
        least = most - threads * number + 1
        sizes = [
            size * most
            for num_bytes in launch.operand_bytes
            for size in _SIZES
            if size * least <= num_bytes <= size * most + _BLOCK_SLACK
        ]
        best = sizes if len(sizes) > len(best) else best
    if best:
        return best
    largest = launch.num_blocks * threads * max(per_thread) * _largest_itemsize(launch.name)
    return [min(num_bytes, largest) for num_bytes in launch.operand_bytes]


def _count(name: str) -> int:
    """Operands of an elementwise kernel, the result included, by what it calls for each number."""
    scalars = _LAMBDA.search(name)
    if "UnaryFunctor" in name:
        return 2
    if "BinaryFunctor" in name or "CUDAFunctor_" in name:
        return 3
    return 1 + len(scalars[1]) if scalars else 2


def _largest_itemsize(name: str) -> int:
    bare = bare_name(name)
    return next((size for pattern, size in _ITEMSIZES if pattern.search(bare)), 4)


def _foreach(launch: KernelLaunch) -> Moves:
    """Lists of tensors, in chunks of 65,536 numbers, one for each thread block.

    Fused optimizers read all lists and write all but the gradients; others read those that they
    say, and write one.
    """
    match = _DEPTH.search(launch.name)
    depth = max(1, int(match[1])) if match else 1
    reads, writes = depth, 1
    functor = _FOREACH_FUNCTOR.search(launch.name)
    if _FUSED.search(launch.name):
        writes = max(1, depth - 1)
    elif "Norm" in launch.name or "MaxFunctor" in launch.name:
        writes = 0
    elif functor:
        reads = min(depth, int(functor[2]))
    # The metadata may have addresses of an earlier launch behind its own: chunks bound them.
    numbers = _FUNCTOR_TYPE.search(bare_name(launch.name))
    itemsize = _largest_itemsize(numbers[0] if numbers else launch.name)
    chunks = launch.num_blocks * _CHUNK * itemsize * depth
    total = sum(launch.operand_bytes) + launch.other_bytes
    num_bytes = min(total, _FULL_CHUNKS * chunks) * (reads + writes) / depth
    note = "lists of tensors by chunks of 65,536 numbers, assumed to be 0.9 full"
    return Moves(Traffic.of(num_bytes, 0.75, 1.1), note)


def _rows(launch: KernelLaunch) -> Moves:
    """Rows by index: never the table, which is the largest operand; the others, and as many bytes
    of the table again. The upper bound is all operands once, the table twice what is beside it.

    Where each thread has a few numbers, an operand that is larger is one that an earlier call left
    in the structure of arguments.
    """
    operands = sorted(launch.operand_bytes[: _MOST_OPERANDS - 1], reverse=True)
    if len(operands) < 2:
        return _once(launch)
    if _BY_NUMBER.search(launch.name):
        most = launch.num_blocks * launch.block_threads * _NUMBERS_OF_THREAD * _MOST_ITEM_BYTES
        operands[1:] = [min(size, most) for size in operands[1:]]
    beside = sum(operands[1:])
    likely = operands[1] + beside
    high = max(likely, min(sum(operands), 3 * beside))
    traffic = Traffic(min(beside, likely), likely, high)
    return Moves(traffic, "assumed: the largest operand is a table, of which rows are read", 1.25)


def _loss(launch: KernelLaunch) -> Moves:
    """One number of each row, at a sector of 32 bytes: by the targets, of eight bytes each.

    The smaller operands are the targets; a table of rows is not read as a whole.
    """
    operands = sorted(launch.operand_bytes, reverse=True)
    num_rows = operands[1] / 8 if len(operands) > 1 else 1.0
    traffic = Traffic.of(num_rows * (32 + 8), 0.5, 2.0)
    return Moves(traffic, "one number of each row")


def _concatenation(launch: KernelLaunch) -> Moves:
    """The first operand is written; as many inputs as the grid's second size are read. Copies of
    pieces (of sharded parameters) read at most as much as they write.
    """
    total = sum(launch.operand_bytes) + launch.other_bytes
    if "CatArray" not in launch.name:
        likely = float(min(total, 2 * max(launch.operand_bytes, default=0)))
        return Moves(Traffic(0.8 * likely, likely, max(total, likely)), "read and written once")
    result, *inputs = launch.operand_bytes or (0,)
    likely = 2.0 * min(result, sum(inputs[: max(1, launch.grid[1])]) or result)
    return Moves(Traffic(0.8 * likely, likely, 1.3 * likely), "read and written once")


def _sorted(launch: KernelLaunch) -> Moves:
    """Sorting, selecting and scanning by tiles: not more than a thread's 32 numbers of eight bytes,
    with as many values, and of the first two operands.
    """
    most = launch.num_blocks * launch.block_threads * 32 * (8 + 8)
    num_bytes = min(2 * sum(launch.operand_bytes[:2]), most)
    return Moves(Traffic.of(num_bytes, 0.5, 2.0), "tiles of the first operands", 1.5)


def _once(launch: KernelLaunch) -> Moves:
    return Moves(Traffic.of(_sum(launch), 0.8, 1.3), "each operand once")


def _reduced(launch: KernelLaunch) -> Moves:
    """The first operand is read, the second written; the others are buffers between blocks."""
    likely = float(sum(launch.operand_bytes[:2]))
    return Moves(Traffic.of(likely, 0.9, 1.2), "the first operand once", _ROWS_SLOWER)


def _passes(launch: KernelLaunch) -> Moves:
    """Kernels that may read their input again, mostly from the cache."""
    slower = _NORM_BACKWARD_SLOWER if _NORM_BACKWARD.search(launch.name) else _ROWS_SLOWER
    note = f"each operand once, {slower} times slower than a stream"
    return Moves(Traffic.of(_sum(launch), 0.8, 1.2), note, slower)


def _scattered(launch: KernelLaunch) -> Moves:
    """Assumed: half the rate of a stream."""
    traffic = Traffic.of(_sum(launch), 0.8, 1.5)
    return Moves(traffic, "assumed: scattered access at two thirds of the rate", 1.5)


def _small(launch: KernelLaunch) -> Moves:
    """Bookkeeping of few numbers: a thread reads or writes 16 bytes of each operand, and of the
    largest, which may be a buffer for more, not ten times as much as of all others.
    """
    most = launch.num_blocks * launch.block_threads * _WIDE
    *others, largest = sorted(min(each, most) for each in launch.operand_bytes or (0,))
    rest = sum(others) + min(launch.other_bytes, most)
    if others:
        largest = min(largest, _BUFFER_TIMES * rest)
    return Moves(Traffic.of(rest + largest, 0.5, 2.0), "bookkeeping")


def _pointwise(launch: KernelLaunch) -> Moves:
    """Inductor's pointwise kernels. Which operands are also written does not show: the upper bound
    counts the largest again. Rows by index do not read the whole table.
    """
    return _fused(launch, _within_the_grid(launch))


def _fused(launch: KernelLaunch, sizes: Sequence[int]) -> Moves:
    operands = sorted(sizes, reverse=True)
    total = float(sum(operands) + launch.other_bytes)
    largest = operands[0] if operands else 0
    note = "each operand once; one of them may be read and written"
    if len(operands) > 1 and _reads_rows(launch.name) and largest > 4 * operands[1]:
        likely = total - largest + operands[1]
        most = total if _NAMELESS.search(launch.name) else likely + operands[1]
        return Moves(Traffic(total - largest, likely, most), f"{note}; rows")
    return Moves(Traffic(0.8 * total, total, total + largest), note)


def _within_the_grid(launch: KernelLaunch) -> list[int]:
    """The operands' bytes; where two or more have the grid's numbers, none has more than these."""
    fitting = _fitting(launch, _NUMBERS_OF_A_THREAD_IN_TRITON)
    if len(fitting) < 2 or fitting == list(launch.operand_bytes):
        return list(launch.operand_bytes)
    return [min(num_bytes, max(fitting)) for num_bytes in launch.operand_bytes]


def _reduction(launch: KernelLaunch) -> Moves:
    """Inductor's reductions: a loop may read its input twice, mostly from the cache."""
    moves = _fused(launch, launch.operand_bytes)
    is_looped = launch.name.startswith("triton_red")
    return moves._replace(slower=_LOOP_SLOWER if is_looped else _PERSISTENT_SLOWER)


def _reads_rows(name: str) -> bool:
    """True if a table is read by index: what is fused says so, or nothing says what is fused, as in
    vLLM, whose rotation is of this kind.
    """
    if _NAMELESS.search(name):
        return True
    return bool(_ROWS_FUSED.search(name)) and not _WHOLE_ROWS.search(name)


def _unknown(launch: KernelLaunch) -> Moves:
    """Nothing is known: 0.3 to 5 times of what all operands take once."""
    return Moves(Traffic.of(_sum(launch), 0.3, 5.0), "nothing is known of this kernel")


_COUNTERS: Final[Mapping[Rule, Callable[[KernelLaunch], Moves]]] = {
    Rule.ELEMENTWISE: _elementwise,
    Rule.STRIDED: _strided,
    Rule.FOREACH: _foreach,
    Rule.ROWS: _rows,
    Rule.LOSS: _loss,
    Rule.CONCATENATION: _concatenation,
    Rule.REDUCED: _reduced,
    Rule.SORTED: _sorted,
    Rule.PASSES: _passes,
    Rule.SCATTERED: _scattered,
    Rule.SMALL: _small,
    Rule.POINTWISE: _pointwise,
    Rule.REDUCTION: _reduction,
    Rule.UNKNOWN: _unknown,
}
