"""What the catalogue says of a GPU: the records, and what follows from their figures.

Two kinds: a `Gpu` runs CUDA, so the phantom can play it; an `EstimateOnlyGpu` does not, and is
there to be shown and calculated with. A figure that nobody states is None.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from ullage.gpus.rates import Rates

__all__ = ["EstimateOnlyGpu", "Gpu", "Segment", "Source", "TensorRates"]

# A lane of each generation of PCIe, in bytes a second each way: 8, 16, 32 GT/s, 128 bits of 130;
# from 6.0 on 64 GT/s, 242 bytes of 256.
_PCIE_LANE: Final = {
    **{generation: 10**9 * 2**generation * 16 // 130 for generation in (3, 4, 5)},
    6: 8 * 10**9 * 242 // 256,
}


class Segment(Enum):
    """Where a GPU is sold."""

    DATA_CENTER = "data center"
    WORKSTATION = "workstation"
    CONSUMER = "consumer"
    EMBEDDED = "embedded"


class Source(NamedTuple):
    """Where a figure comes from; is_opened: the page was read, not cited from memory."""

    id: str
    title: str
    url: str
    is_opened: bool


@dataclass(frozen=True, slots=True)
class TensorRates:
    """Operations a second of the tensor cores, dense, by the precision of the operands.

    The sum is kept in 32 bits, as PyTorch does. None: no such unit, or nobody states the rate.
    """

    fp16: int | None = None
    bf16: int | None = None
    tf32: int | None = None
    fp8: int | None = None
    int8: int | None = None
    fp4: int | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One model of GPU, as CUDA describes it to a program.

    Attributes:
        slug: the stable name, such as "h100-80gb".
        name: as CUDA's device properties have it, such as "NVIDIA H100 80GB HBM3".
        aliases: other names that find it.
        segment: where it is sold.
        architecture: NVIDIA's name for the generation.
        compute_capability: (major, minor).
        memory_type: such as "HBM3".
        nominal_size: the size on the box, such as "80 GB"; CUDA reports less.
        form: such as "SXM5".
        host_link: how it is connected to the host.
        nvlink_bytes_per_s: to other GPUs, both directions together, as the maker states it; None:
            it has no NVLink.
        total_bytes: the device's memory as CUDA reports it.
        total_low_bytes: the least that a reading found allows; drivers differ a little.
        total_high_bytes: the most that a reading found allows.
        is_total_exact: total_bytes was read to the byte; otherwise it is assumed, between the two.
        total_note: under what driver, and what others gave.
        context_low_bytes: the least that the driver holds for one PyTorch process. This and the
            next two are assumed.
        context_bytes: what it holds with the kernels of an ordinary job loaded.
        context_high_bytes: the most.
        num_multiprocessors: SMs.
        registers_per_multiprocessor: 32-bit registers of one SM.
        threads_per_multiprocessor: the most that can be resident on one SM.
        blocks_per_multiprocessor: the most that can be resident on one SM.
        l1_bytes_per_multiprocessor: L1 cache of one SM; from capability 7.0 on shared memory is a
            part of it.
        shared_bytes_per_multiprocessor: shared memory of one SM.
        shared_bytes_per_block_optin: the most shared memory that one block can ask for.
        shared_bytes_per_clock: shared memory's bandwidth in one SM.
        l2_bytes: L2 cache.
        l2_bytes_per_clock: its bandwidth for reads.
        memory_bus_bits: width of the memory bus.
        bandwidth_bytes_per_s: of the memory, as the maker states it.
        memory_clock_khz: half the data rate.
        clock_khz: the highest of the SMs.
        tensor_ops_per_s: what the tensor cores do at best.
        measured: what such a GPU was seen to reach of these rates; None: it was not measured, as
            no entry of the catalogue itself was.
    """

    slug: str
    name: str
    aliases: tuple[str, ...]
    segment: Segment
    architecture: str
    compute_capability: tuple[int, int]
    memory_type: str
    nominal_size: str
    form: str
    host_link: str
    nvlink_bytes_per_s: int | None
    total_bytes: int
    total_low_bytes: int
    total_high_bytes: int
    is_total_exact: bool
    total_note: str
    context_low_bytes: int
    context_bytes: int
    context_high_bytes: int
    num_multiprocessors: int
    registers_per_multiprocessor: int
    threads_per_multiprocessor: int
    blocks_per_multiprocessor: int
    l1_bytes_per_multiprocessor: int
    shared_bytes_per_multiprocessor: int
    shared_bytes_per_block_optin: int
    shared_bytes_per_clock: int
    l2_bytes: int | None
    l2_bytes_per_clock: int | None
    memory_bus_bits: int | None
    bandwidth_bytes_per_s: int
    memory_clock_khz: int | None
    clock_khz: int | None
    tensor_ops_per_s: TensorRates
    measured: Rates | None = None

    @property
    def register_bytes(self) -> int:
        """The registers of all SMs, four bytes each."""
        return 4 * self.registers_per_multiprocessor * self.num_multiprocessors

    @property
    def shared_bytes(self) -> int:
        """The shared memory of all SMs."""
        return self.shared_bytes_per_multiprocessor * self.num_multiprocessors

    @property
    def l1_bytes(self) -> int:
        """The L1 caches of all SMs."""
        return self.l1_bytes_per_multiprocessor * self.num_multiprocessors

    @property
    def shared_bytes_per_s(self) -> int | None:
        """Bandwidth of all SMs' shared memory at the highest clock."""
        if self.clock_khz is None:
            return None
        return self.shared_bytes_per_clock * self.num_multiprocessors * self.clock_khz * 1000

    @property
    def l2_bytes_per_s(self) -> int | None:
        """Bandwidth of the L2 cache for reads at the highest clock."""
        if self.l2_bytes_per_clock is None or self.clock_khz is None:
            return None
        return self.l2_bytes_per_clock * self.clock_khz * 1000

    @property
    def host_bytes_per_s(self) -> int | None:
        """Bandwidth of the link to the host, each way; None where it is not PCIe."""
        match = re.fullmatch(r"PCIe (\d)\.0 x(\d+)", self.host_link)
        return _PCIE_LANE[int(match[1])] * int(match[2]) if match else None


@dataclass(frozen=True, slots=True)
class EstimateOnlyGpu:
    """A GPU without CUDA: it can be shown and calculated with, not run on.

    Attributes:
        slug: the stable name, such as "mi300x".
        name: as its maker has it.
        aliases: other names that find it.
        vendor: its maker.
        segment: where it is sold.
        architecture: the maker's name for the generation.
        memory_type: such as "HBM3".
        memory_sizes_gb: the sizes that it comes with, as on the box; unified memory is shared with
            the CPU.
        is_memory_unified: the CPU's memory is the GPU's as well.
        bandwidth_bytes_per_s: of the memory, as the maker states it.
        num_cores: compute units (AMD) or GPU cores (Apple), of the largest variant.
        tensor_ops_per_s: of the matrix units.
    """

    slug: str
    name: str
    aliases: tuple[str, ...]
    vendor: str
    segment: Segment
    architecture: str
    memory_type: str
    memory_sizes_gb: tuple[int, ...]
    is_memory_unified: bool
    bandwidth_bytes_per_s: int
    num_cores: int | None
    tensor_ops_per_s: TensorRates
