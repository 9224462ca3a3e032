"""The memory hierarchy of a GPU, from the registers to the links to other GPUs.

>>> from ullage.facts.gpus import find_gpu
>>> [(level.name, level.bytes_per_s) for level in memory_levels(find_gpu("l4"))][-2:]
[('device memory', 300000000000), ('host link', 31507692304)]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ullage.ground.units import format_bytes

if TYPE_CHECKING:
    from ullage.facts.gpus.gpu import Gpu


class MemoryLevel(NamedTuple):
    """One level of the memory hierarchy.

    Attributes:
        name: such as "L2 cache".
        num_bytes: the size in the whole GPU; None: unknown, or the level is a link.
        bytes_per_s: the bandwidth; None: unknown.
        note: the size in one SM, or the kind of link.
    """

    name: str
    num_bytes: int | None
    bytes_per_s: int | None
    note: str


def memory_levels(gpu: Gpu) -> tuple[MemoryLevel, ...]:
    """Returns the levels, the registers first; NVLink only if the GPU has it."""
    levels = [*_levels_of_sms(gpu), *_levels_of_chip(gpu)]
    if gpu.nvlink_bytes_per_s is not None:
        levels.append(
            MemoryLevel("NVLink", None, gpu.nvlink_bytes_per_s, "to other GPUs, both ways")
        )
    return tuple(levels)


def _levels_of_sms(gpu: Gpu) -> list[MemoryLevel]:
    registers = format_bytes(4 * gpu.registers_per_multiprocessor)
    shared = format_bytes(gpu.shared_bytes_per_multiprocessor)
    l1_cache = format_bytes(gpu.l1_bytes_per_multiprocessor)
    is_one = ", shared memory in it" if gpu.compute_capability >= (7, 0) else ""
    return [
        MemoryLevel("registers", gpu.register_bytes, None, f"{registers} an SM"),
        MemoryLevel("shared memory", gpu.shared_bytes, gpu.shared_bytes_per_s, f"{shared} an SM"),
        MemoryLevel("L1 cache", gpu.l1_bytes, None, f"{l1_cache} an SM{is_one}"),
    ]


def _levels_of_chip(gpu: Gpu) -> list[MemoryLevel]:
    total, rate = gpu.total_bytes, gpu.bandwidth_bytes_per_s
    return [
        MemoryLevel("L2 cache", gpu.l2_bytes, gpu.l2_bytes_per_s, ""),
        MemoryLevel("device memory", total, rate, gpu.memory_type),
        MemoryLevel("host link", None, gpu.host_bytes_per_s, gpu.host_link),
    ]
