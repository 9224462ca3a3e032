"""The records of a GPU in the catalogue, and the rates that follow from their figures.

There are two kinds. A `Gpu` runs CUDA, so the phantom can simulate it. An `EstimateOnlyGpu` does
not; ullage only lists it and uses it in estimates. A figure without a source is None.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Final, NamedTuple, TypeAlias

from ullage.ground.units import MIB, format_bytes

# Bytes per second of one PCIe lane in one direction, by generation: 8, 16, 32 GT/s with 128 of 130
# bits for data; from 6.0 on 64 GT/s with 242 of 256 bytes.
_PCIE_LANE: Final = {
    **{generation: 10**9 * 2**generation * 16 // 130 for generation in (3, 4, 5)},
    6: 8 * 10**9 * 242 // 256,
}


class Segment(Enum):
    """The market that a GPU is sold for."""

    DATA_CENTER = "data center"
    WORKSTATION = "workstation"
    CONSUMER = "consumer"
    EMBEDDED = "embedded"


class Source(NamedTuple):
    """The source of a figure; is_opened: the page was read, not cited from memory."""

    id: str
    title: str
    url: str
    is_opened: bool


@dataclass(frozen=True, slots=True)
class TensorRates:
    """Dense operations per second of the tensor cores, by the precision of the operands.

    The accumulator has 32 bits, as in PyTorch. None: there is no such unit, or no source states the
    rate.
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
        name: the name in CUDA's device properties, such as "NVIDIA H100 80GB HBM3".
        aliases: other names by which users find it.
        segment: the market that it is sold for.
        architecture: NVIDIA's name for the generation.
        compute_capability: (major, minor).
        memory_type: such as "HBM3".
        nominal_size: the size on the box, such as "80 GB"; CUDA reports less.
        form: the form factor, such as "SXM5".
        host_link: the link to the host, such as "PCIe 5.0 x16".
        nvlink_bytes_per_s: NVLink's bandwidth to other GPUs, both directions together, as the maker
            states it; None: it has no NVLink.
        total_bytes: the device's memory as CUDA reports it.
        total_low_bytes: the lower bound that the published readings allow; drivers differ a little.
        total_high_bytes: the upper bound that they allow.
        is_total_exact: a source gives total_bytes to the byte; otherwise it is an assumption
            between the two bounds.
        total_note: the driver of the reading, and the readings under other drivers.
        context_low_bytes: the least memory that the driver uses for one PyTorch process. This and
            the next two are assumptions.
        context_bytes: the same with the kernels of an ordinary job loaded.
        context_high_bytes: the most memory that it uses.
        num_multiprocessors: the number of SMs.
        registers_per_multiprocessor: 32-bit registers of one SM.
        threads_per_multiprocessor: the maximum of resident threads on one SM.
        blocks_per_multiprocessor: the maximum of resident blocks on one SM.
        l1_bytes_per_multiprocessor: L1 cache of one SM; from capability 7.0 on shared memory is a
            part of it.
        shared_bytes_per_multiprocessor: shared memory of one SM.
        shared_bytes_per_block_optin: the most shared memory that one block can request.
        shared_bytes_per_clock: shared memory's bandwidth in one SM.
        l2_bytes: L2 cache.
        l2_bytes_per_clock: the L2 cache's bandwidth for reads.
        memory_bus_bits: width of the memory bus.
        bandwidth_bytes_per_s: the memory's bandwidth, as the maker states it.
        memory_clock_khz: half the data rate.
        clock_khz: the highest clock of the SMs.
        tensor_ops_per_s: the peak rates of the tensor cores.
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

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions of an estimate on it: none."""
        return ()

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
        """Bandwidth of the link to the host in one direction; None if it is not PCIe."""
        match = re.fullmatch(r"PCIe (\d)\.0 x(\d+)", self.host_link)
        return _PCIE_LANE[int(match[1])] * int(match[2]) if match else None


@dataclass(frozen=True, slots=True)
class EstimateOnlyGpu:
    """A GPU without CUDA: ullage lists it and uses it in estimates, but cannot simulate it. It is
    counted as one of CUDA's that was compared with nothing.

    Attributes:
        slug: the stable name, such as "mi300x".
        name: the maker's name for it.
        aliases: other names by which users find it.
        vendor: the maker.
        segment: the market that it is sold for.
        architecture: the maker's name for the generation.
        memory_type: such as "HBM3".
        memory_sizes_gb: the sizes on sale, as on the box.
        is_memory_unified: the GPU shares its memory with the CPU.
        bandwidth_bytes_per_s: the memory's bandwidth, as the maker states it.
        num_cores: compute units (AMD) or GPU cores (Apple) of the largest variant.
        tensor_ops_per_s: the peak rates of the matrix units.
        total_bytes: the memory that a process can have; of several sizes on sale, of the largest.
    """

    compute_capability: ClassVar[tuple[int, int]] = (8, 0)
    threads_per_multiprocessor: ClassVar[int] = 2048
    nvlink_bytes_per_s: ClassVar[int | None] = None
    # Nobody states a context: that of an MI300X was seen at 0.3 to 1.5 GiB.
    context_low_bytes: ClassVar[int] = 300 * MIB
    context_bytes: ClassVar[int] = 700 * MIB
    context_high_bytes: ClassVar[int] = 1536 * MIB

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
    total_bytes: int

    @property
    def num_multiprocessors(self) -> int:
        """Its cores; where no source states them, an H100's."""
        return self.num_cores or 132

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions of an estimate on it, each a sentence."""
        lines = [f"{self.name} is counted with a CUDA GPU's kernels; it was compared with nothing"]
        if self.is_memory_unified:
            lines.append(
                f"a process has {format_bytes(self.total_bytes)} of {max(self.memory_sizes_gb)} GB "
                f"of unified memory"
            )
        return tuple(lines)


Entry: TypeAlias = Gpu | EstimateOnlyGpu
