"""The work that the phantom saw the device given: the pieces of work that take time on a stream.

The phantom writes each distinct piece down once (phantom/csrc/machine/clock.c), and the order in
which streams were given them; `work_log.py` reads both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """A kernel of PyTorch, Triton or an extension.

    Attributes:
        name: of the function on the device; C++ names are mangled. Empty: not known.
        num_blocks: thread blocks of the grid.
        block_threads: threads of a thread block.
        grid: the grid's three sizes.
        operand_bytes: for each of the allocator's blocks that an argument points into, the bytes
            from the lowest such address to the block's end; in the order of the arguments, at most
            eight. Some may be left by an earlier call, in bytes of a structure that are never set.
        other_bytes: the sum over all other blocks.
        num_operands: how many blocks there are altogether.
        arguments: the first bytes of the arguments where the name tells of attention, or of a
            product of CUTLASS; else empty.
    """

    name: str
    grid: tuple[int, int, int]
    block_threads: int
    operand_bytes: tuple[int, ...]
    other_bytes: int = 0
    num_operands: int = 0
    arguments: bytes = b""

    @property
    def num_blocks(self) -> int:
        """Thread blocks of the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product of cuBLAS or cuBLASLt: (batch, m, k) times (batch, k, n).

    Attributes:
        precision: torch's name of the operands' type; "tf32" and "fp32" for float32.
        result_bytes: of a number of the result.
    """

    m: int
    n: int
    k: int
    batch: int
    precision: str
    result_bytes: int


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution of cuDNN.

    Attributes:
        direction: "forward", "backward data" or "backward filter".
        num_macs: multiplications and additions, a pair each.
        num_bytes: of image, filter and response.
        precision: as of a product.
        num_groups: 1, or more where only channels of one group meet.
    """

    direction: str
    num_macs: int
    num_bytes: int
    precision: str
    num_groups: int = 1


@dataclass(frozen=True, slots=True)
class FusedAttention:
    """Attention of cuDNN.

    Attributes:
        is_backward: the gradients of queries, keys and values.
        batch, heads, kv_heads, q_len, kv_len, head_dim: the shape.
        is_causal: None: not known.
    """

    is_backward: bool
    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    precision: str
    is_causal: bool | None = None


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """A collective or message of NCCL.

    Attributes:
        name: "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "reduce",
            "gather", "scatter", "send" or "receive".
        num_bytes: the buffer that it fills or reduces: of an all-gather the whole result, of a
            reduce-scatter the whole input.
        num_gpus: ranks of the communicator.
        num_local: of them on this machine; 0: not known.
        least_channels, most_channels: what the job allows NCCL; 0: no limit.
    """

    name: str
    num_bytes: int
    num_gpus: int
    num_local: int = 0
    least_channels: int = 0
    most_channels: int = 0


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy.

    Attributes:
        direction: "to device", "to host", "on device" or "between devices".
        is_pinned: the host's memory is; a copy that is not goes through a buffer of the driver.
    """

    direction: str
    num_bytes: int
    is_pinned: bool


@dataclass(frozen=True, slots=True)
class Fill:
    """A memset."""

    num_bytes: int


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """A call of a library that is none of the others.

    Attributes:
        name: such as "cublasSgemv_v2"; empty: not known.
        num_bytes: of the allocator's blocks that it was handed.
    """

    name: str
    num_bytes: int


GivenWork: TypeAlias = (
    KernelLaunch
    | Product
    | Convolution
    | FusedAttention
    | CollectiveCall
    | Copy
    | Fill
    | LibraryCall
)
