"""Pieces of work, from the rows of a log."""

from __future__ import annotations

from typing import Final

from ullage.clock.given_work import (
    CollectiveCall,
    Convolution,
    Copy,
    Fill,
    FusedAttention,
    GivenWork,
    KernelLaunch,
    LibraryCall,
    Product,
)
from ullage.log.work_log import WorkKind, WorkRow

# cudaDataType (library_types.h), and 100 for TF32.
_PRECISIONS: Final = {
    0: "fp32", 1: "float64", 2: "float16", 3: "int8", 4: "fp32", 5: "float64", 14: "bfloat16",
    28: "float8_e4m3fn", 29: "float8_e5m2", 33: "float4_e2m1fn_x2", 100: "tf32",
}  # fmt: skip
_COMPLEX: Final = frozenset({4, 5})
# In the order of enum collective, enum direction and enum copy_direction.
_COLLECTIVES: Final = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "reduce", "gather",
    "scatter", "send", "receive",
)  # fmt: skip
_CONVOLUTIONS: Final = ("forward", "backward data", "backward filter")
_COPIES: Final = ("to device", "to host", "on device", "between devices")
_FIRST_OPERAND, _LISTED_OPERANDS = 5, 8


def given_work(row: WorkRow) -> GivenWork:
    """The piece of work that a row describes."""
    numbers = row.numbers
    match row.kind:
        case WorkKind.KERNEL:
            return _kernel(row)
        case WorkKind.PRODUCT:
            m, n, k, batch, result_bytes = numbers[:5]
            times = 4 if row.precision in _COMPLEX else 1  # a complex product is four real ones
            return Product(m, n, k, max(batch, 1) * times, _precision(row), result_bytes)
        case WorkKind.CONVOLUTION:
            direction, macs, num_bytes, groups = numbers[:4]
            return Convolution(
                _CONVOLUTIONS[direction], macs, num_bytes, _precision(row), max(groups, 1)
            )
        case WorkKind.ATTENTION:
            is_backward, *shape, causal = numbers[:8]
            batch, heads, kv_heads, q_len, kv_len, head_dim = shape
            return FusedAttention(
                bool(is_backward), batch, heads, kv_heads, q_len, kv_len, head_dim,
                _precision(row), None if causal < 0 else bool(causal),
            )  # fmt: skip
        case WorkKind.COLLECTIVE:
            which, *rest = numbers[:6]
            return CollectiveCall(_COLLECTIVES[which], *rest)
        case WorkKind.COPY:
            direction, num_bytes, is_pinned = numbers[:3]
            return Copy(_COPIES[direction], num_bytes, bool(is_pinned))
        case WorkKind.FILL:
            return Fill(numbers[0])
        case WorkKind.LIBRARY:
            return LibraryCall(row.name, numbers[0])


def _kernel(row: WorkRow) -> KernelLaunch:
    x, y, z, threads, num_operands = row.numbers[:_FIRST_OPERAND]
    listed = row.numbers[_FIRST_OPERAND : _FIRST_OPERAND + _LISTED_OPERANDS]
    return KernelLaunch(
        name=row.name,
        grid=(x, y, z),
        block_threads=threads,
        operand_bytes=tuple(size for size in listed if size),
        other_bytes=row.numbers[_FIRST_OPERAND + _LISTED_OPERANDS],
        num_operands=num_operands,
        arguments=row.arguments,
    )


def _precision(row: WorkRow) -> str:
    return _PRECISIONS.get(row.precision, "bfloat16")
