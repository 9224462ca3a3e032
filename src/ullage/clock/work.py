"""The shapes of kernels, and the least time that a roofline gives them.

The roofline is a start, and the longer of two times: the operations at the rate of their units, and
the bytes that must be read or written once at the memory's bandwidth.
Source: Williams, Waterman, Patterson, Roofline, CACM 52(4), 2009.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

ITEMSIZES: Final = {
    "float64": 8.0,
    "fp32": 4.0,
    "tf32": 4.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "float8_e4m3fn": 1.0,
    "float8_e5m2": 1.0,
    "int8": 1.0,
    "float4_e2m1fn_x2": 0.5 + 1 / 16,
}
"""Bytes of an operand's number by precision; in float4 with a scale of 8 bits for 16 numbers."""


class Kind(Enum):
    """The kinds of work that have tables; the values are the names in the files."""

    MATRIX_PRODUCT = "matrix-product"
    ATTENTION_FORWARD = "attention-forward"
    ATTENTION_DECODE = "attention-decode"
    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_TO_ALL = "all-to-all"
    CUSTOM_ALL_REDUCE = "custom-all-reduce"


class Roof(NamedTuple):
    """The bound of a kernel.

    Attributes:
        ops_per_s: the rate of the units that compute; 0: nothing is computed.
        bytes_per_s: the bandwidth of the memory, or of a GPU's link to others.
        start_s: the time of the fastest kernel of this kind.
    """

    ops_per_s: float
    bytes_per_s: float
    start_s: float


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """(batch, m, k) times (batch, k, n).

    Attributes:
        m, n, k, batch: the shape.
        itemsize: bytes of an operand's number; a result has two bytes or as many. The functions of
            kernels.py set it by the precision.
    """

    m: int
    n: int
    k: int
    batch: int = 1
    itemsize: float = 2.0

    @property
    def ops(self) -> float:
        """Multiplications and additions."""
        return 2.0 * self.batch * self.m * self.n * self.k

    @property
    def num_bytes(self) -> float:
        """Operands, read once, and the result."""
        operands = (self.m + self.n) * self.k * self.itemsize
        return self.batch * (operands + max(2.0, self.itemsize) * self.m * self.n)

    @property
    def point(self) -> tuple[float, ...]:
        """Its place in a table. The products of a batch share the units as rows of one would."""
        return (self.m * self.batch, self.n, self.k)


@dataclass(frozen=True, slots=True)
class Attention:
    """softmax(q k') v without the projections.

    Attributes:
        batch: sequences.
        heads, kv_heads: heads of queries, and of keys and values.
        head_dim: the size of a head.
        q_len, kv_len: the length of the queries, and of keys and values.
        is_causal: a query sees the keys up to its own position, counted from the end.
        itemsize: bytes of a number. The functions of kernels.py set it by the precision.
    """

    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    q_len: int
    kv_len: int
    is_causal: bool = True
    itemsize: float = 2.0

    @property
    def ops(self) -> float:
        """Multiplications and additions of the two products, of the visible pairs alone."""
        pairs = float(self.q_len) * self.kv_len
        if self.is_causal:
            reach = min(self.q_len, self.kv_len)
            pairs -= reach * (reach - 1) / 2
        return 4.0 * self.batch * self.heads * self.head_dim * pairs

    @property
    def num_bytes(self) -> float:
        """Queries, keys and values, read once, and the result."""
        numbers = 2.0 * self.heads * self.q_len + 2.0 * self.kv_heads * self.kv_len
        return self.batch * self.head_dim * numbers * self.itemsize

    @property
    def point(self) -> tuple[float, ...]:
        """Its place in a table: size of a head, queries for each key, heads of keys, sequences,
        and length.
        """
        group = self.heads / self.kv_heads
        return (self.head_dim, group, self.kv_heads, self.batch, self.kv_len)


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective of NCCL, or the all-reduce of an inference engine's own kernel.

    Attributes:
        kind: which one.
        num_bytes: the buffer that it fills or reduces: of an all-gather the whole result, of a
            reduce-scatter the whole input.
        num_gpus: the GPUs that take part.
    """

    kind: Kind
    num_bytes: float
    num_gpus: int

    @property
    def sent_bytes(self) -> float:
        """The least bytes that each GPU sends: an all-reduce is a reduce-scatter and an all-gather.

        Source: NVIDIA, nccl-tests, doc/PERFORMANCE.md, bus bandwidth.
        """
        times = 2.0 if self.kind in (Kind.ALL_REDUCE, Kind.CUSTOM_ALL_REDUCE) else 1.0
        return times * self.num_bytes * (self.num_gpus - 1) / self.num_gpus

    @property
    def point(self) -> tuple[float, ...]:
        """Its place in a table."""
        return (self.num_gpus, self.num_bytes)


def roofline(work: MatrixProduct | Attention | Collective, roof: Roof) -> float:
    """The least seconds of a kernel, by the rates."""
    if isinstance(work, Collective):
        return roof.start_s + work.sent_bytes / roof.bytes_per_s
    return roof.start_s + max(work.ops / roof.ops_per_s, work.num_bytes / roof.bytes_per_s)
