"""How long a step takes: a roofline for each operation, and the link to the host.

An operation takes the longest of three: its floating-point operations at the rate of the units that
do them, the bytes that it moves at the memory's bandwidth, and the time in which the host launches
its kernels. Copies over the link run beside the block that they are for, and cost what they take
longer than it. The rates are those of the catalogue, as the makers state them: real ones are lower,
all of them, so that the seconds are a lower bound, and it is their order that plans are chosen by.

Ignores: kernels that torch.compile fuses; cuts of the clock; what runs beside on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ullage.gpus.catalog import Gpu
from ullage.plan.blocks import Block, block_of_module
from ullage.trace.model import Record
from ullage.trace.work import Operation

# Between two launches of kernels by PyTorch's eager host code. Assumed.
LAUNCH_S = 5e-6
# Where nobody states the host link, as that of GPUs which are soldered to their host.
_LINK_BYTES_PER_S = 15_754_000_000
# Multiplications and additions a clock and multiprocessor outside of the tensor cores, in 32 bits.
# Source: CUDA C++ Programming Guide, arithmetic instructions, throughput by compute capability.
_FP32_PER_CLOCK = {(6, 0): 64, (7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}
_FP32_PER_CLOCK_LATER = 128
_CLOCK_KHZ = 1_500_000
_FP64_SHARE = 0.5
_PARTS = ("forward", "backward", "optimizer")


@dataclass(frozen=True, slots=True)
class Seconds:
    """How long a step takes: each block's part in it, and all of it."""

    blocks: npt.NDArray[np.float64]
    step: float


def step_seconds(record: Record, blocks: Sequence[Block], gpu: Gpu) -> Seconds:
    """The seconds of the last whole step of a run with the work."""
    block_of = block_of_module(blocks, record.modules)
    operations = () if record.work is None else record.work.operations
    busy = np.zeros((len(blocks) + 1, len(_PARTS)))
    link = np.zeros_like(busy)
    for one in operations:
        place = block_of[one.module], _PARTS.index(one.part)
        seconds = operation_seconds(one, gpu) * one.num
        (link if one.link_bytes else busy)[place] += seconds
    taken = np.maximum(busy, link).sum(axis=1)
    return Seconds(taken[:-1], float(taken.sum()))


def operation_seconds(one: Operation, gpu: Gpu) -> float:
    """The seconds of one operation."""
    launched = one.num_launches * LAUNCH_S
    if one.link_bytes:
        return max(one.link_bytes / (gpu.host_bytes_per_s or _LINK_BYTES_PER_S), launched)
    computed = one.flops / flops_per_s(gpu, one.precision) if one.flops else 0.0
    return max(computed, one.num_bytes / gpu.bandwidth_bytes_per_s, launched)


def flops_per_s(gpu: Gpu, precision: str) -> float:
    """The rate of a GPU for numbers such as "bfloat16" or "fp32"."""
    rates = gpu.tensor_ops_per_s
    tensor = {
        "bfloat16": rates.bf16,
        "float16": rates.fp16,
        "tf32": rates.tf32,
        "float8_e4m3fn": rates.fp8,
        "float8_e5m2": rates.fp8,
        "int8": rates.int8,
    }.get(precision)
    if tensor is not None:
        return float(tensor)
    per_clock = _FP32_PER_CLOCK.get(gpu.compute_capability, _FP32_PER_CLOCK_LATER)
    clock = (gpu.clock_khz or _CLOCK_KHZ) * 1000
    rate = 2.0 * per_clock * gpu.num_multiprocessors * clock
    return rate * _FP64_SHARE if precision == "float64" else rate
