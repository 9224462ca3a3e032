"""The costs of a played step's kernels: each as the clock would cost it in a real run.

kernel_cost(find_gpu("h100"), Kernel(Kind.PRODUCT, (), (4096, 4096, 4096, 1), "bfloat16"), links)

A played kernel has the name and the grid that PyTorch's own would have, as far as its cost depends
on them, so that one model of costs serves both.
"""

from __future__ import annotations

import math
from typing import Final

from ullage.clock import costs
from ullage.clock.cost import Category, Cost
from ullage.clock.costs.attention import attention_time
from ullage.clock.costs.attention_rates import Kernel as AttentionKernel
from ullage.clock.costs.grouped import Groups, grouped_cost
from ullage.clock.costs.traffic import Traffic, moved
from ullage.clock.duration import Duration
from ullage.clock.given_work import CollectiveCall, Convolution, FusedAttention, KernelLaunch
from ullage.clock.given_work import Product as ProductCall
from ullage.clock.interconnect import Interconnect
from ullage.clock.work import Attention
from ullage.facts.gpus import Gpu
from ullage.players.eager.training.eager.kernels import Kernel, Kind

_ITEMSIZES: Final = {"float32": 4, "int64": 8, "bool": 1, "uint8": 1}
_THREADS: Final = 128
_WIDE: Final = {2: 8}  # numbers of a thread, by bytes of a number; else four
_ROW_NUMBERS: Final = 1024  # of a block of softmax or of a norm
_CHUNK: Final = 65_536
# Operations that count for the utilisation, of a backward pass of attention (clock/costs/launches).
_COUNTED_BACKWARD: Final = 2.0
_PRECISIONS: Final = {"float32": "fp32"}
_FLASH: Final = {
    "flash": AttentionKernel.FLASH_2, "efficient": AttentionKernel.MEMORY_EFFICIENT,
}  # fmt: skip
_CODES: Final = {"bfloat16": "N3c108BFloat16E", "float16": "N3c104HalfE"}
# PyTorch's kernels by what they do; the rules of the clock read these names.
_NAMES: Final = {
    Kind.CAST: "_ZN2at6native27unrolled_elementwise_kernelINS0_16converting_copyE",
    Kind.ROWS: "_ZN2at6native12softmax_warp",
    Kind.ROWS_BACKWARD: "_ZN2at6native28layer_norm_grad_input_kernel",
    Kind.SUM: "_ZN2at6native13reduce_kernelILi512ELi1ENS0_8ReduceOpI",
    Kind.LOOKUP: "_ZN2at6native17vectorized_gatherI",
    Kind.JOIN: "_ZN2at6native19CatArrayBatchedCopyI",
    Kind.STRIDED: "_ZN2at6native18elementwise_kernelILi128ELi4ENS0_7stridedE",
}


def product_call(kernel: Kernel) -> ProductCall:
    """A product as cuBLAS is asked for it: its columns are rows of PyTorch's."""
    rows, columns, length, batch = kernel.numbers
    precision = _PRECISIONS.get(kernel.precision, kernel.precision)
    return ProductCall(columns, rows, length, batch, precision, _ITEMSIZES.get(kernel.precision, 2))


def kernel_cost(gpu: Gpu, kernel: Kernel, links: Interconnect, num_local: int = 0) -> Cost:
    """The cost of a kernel of a play.

    Args:
        links: between GPUs.
        num_local: of a collective's GPUs, those that share a machine; 0: as many as fit.
    """
    match kernel.kind:
        case Kind.ATTENTION:
            return _attention(gpu, kernel, links)
        case Kind.COLLECTIVE:
            call = CollectiveCall(kernel.name, kernel.operands[0], kernel.numbers[0], num_local)
            return costs.cost_of(gpu, call, links)
        case Kind.CONVOLUTION:
            num_macs, groups = kernel.numbers
            precision = _PRECISIONS.get(kernel.precision, kernel.precision)
            convolution = Convolution(
                kernel.name, num_macs, sum(kernel.operands), precision, groups
            )
            return costs.cost_of(gpu, convolution, links)
        case Kind.GROUPED:
            rows, columns, length, num, is_weight = kernel.numbers
            shares = Groups(num, rows, columns, length, bool(is_weight))
            return grouped_cost(gpu, shares, kernel.precision)
        case Kind.PRODUCT:
            return costs.cost_of(gpu, product_call(kernel), links)
        case _:
            return costs.cost_of(gpu, _launch(kernel), links)


def _attention(gpu: Gpu, kernel: Kernel, links: Interconnect) -> Cost:
    is_backward, batch, heads, kv_heads, q_len, kv_len, head_dim, is_causal = kernel.numbers
    precision = _PRECISIONS.get(kernel.precision, kernel.precision)
    if kernel.name not in _FLASH:
        fused = FusedAttention(
            bool(is_backward), batch, heads, kv_heads, q_len, kv_len, head_dim, precision,
            bool(is_causal),
        )  # fmt: skip
        return costs.cost_of(gpu, fused, links)
    which = _FLASH[kernel.name]
    work = Attention(batch, heads, kv_heads, head_dim, q_len, kv_len, is_causal=bool(is_causal))
    time = attention_time(gpu, which, work, precision, is_backward=bool(is_backward))
    if is_backward and which is AttentionKernel.FLASH_2:
        # Two kernels beside it read and write gradients once (clock/costs/launches.py).
        numbers = batch * heads * q_len * head_dim
        beside = moved(gpu, Traffic.of(8.0 * numbers, 0.75, 1.25)).scaled(2)
        time = Duration(
            time.low_s + beside.low_s, time.s + beside.s, time.high_s + beside.high_s, time.basis
        )
    part = "backward" if is_backward else "forward"
    ops = work.ops * (_COUNTED_BACKWARD if is_backward else 1.0)
    return Cost(time, Category.ATTENTION, f"{which.value} {part}", ops)


def _launch(kernel: Kernel) -> KernelLaunch:
    if kernel.kind is Kind.LISTS:
        return _lists(kernel)
    numel = max(kernel.numbers[0] if kernel.numbers else max(kernel.operands) // 4, 1)
    itemsize = max(1, kernel.operands[0] // numel)
    threads, numbers = _THREADS, 4
    if kernel.kind is Kind.POINTWISE:
        numbers = _WIDE.get(itemsize, 4)
        name = (
            f"_ZN2at6native29vectorized_elementwise_kernelILi{numbers}ENS0_9pointwiseE"
            f"St5arrayIPcLm{len(kernel.operands)}EE"
        )
    else:
        name = _NAMES[kernel.kind]
    if kernel.kind is Kind.CAST:
        name += f"St5arrayIPcLm{len(kernel.operands)}EE"
    elif kernel.kind is Kind.STRIDED:
        name += "13BinaryFunctorI" if len(kernel.operands) > 2 else "12UnaryFunctorI"
    elif kernel.kind in (Kind.ROWS, Kind.ROWS_BACKWARD):
        numel = max(kernel.operands) // itemsize
        threads, numbers = _ROW_NUMBERS // 4, 4
    elif kernel.kind is Kind.SUM:
        numel = max(kernel.operands) // itemsize
        threads, numbers = 512, 4
    operands = _ordered(kernel)
    blocks = math.ceil(numel / (threads * numbers))
    inputs = len(operands) - 1 if kernel.kind is Kind.JOIN else 1
    return KernelLaunch(name, (blocks, max(1, inputs), 1), threads, operands[:8], 0, len(operands))


def _ordered(kernel: Kernel) -> tuple[int, ...]:
    """The operands in the order of the kernel's arguments: a reduction's input comes first."""
    # Of a table, which comes with its rows, as much is read as is given.
    if kernel.kind is Kind.SUM:
        return tuple(reversed(kernel.operands[:2]))
    if kernel.kind is Kind.LOOKUP:
        return (kernel.operands[0] * 8, *kernel.operands)
    return tuple(size for size in kernel.operands if size)


def _lists(kernel: Kernel) -> KernelLaunch:
    num_lists, num_read, numel = kernel.numbers
    code = _CODES.get(kernel.precision, "f")
    name = (
        f"_ZN2at6native25multi_tensor_apply_kernelINS0_18TensorListMetadataILi{num_lists}EEE"
        f"{kernel.name}I{code}Li{num_lists}ELi{num_read}ELi0EE"
    )
    blocks = max(1, math.ceil(numel / _CHUNK))
    return KernelLaunch(name, (blocks, 1, 1), 512, kernel.operands, 0, len(kernel.operands))
