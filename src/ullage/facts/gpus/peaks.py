"""The peak rates of a GPU that follow from its figures: operations, and links to host and peers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ullage.facts.gpus.gpu import Gpu

# Where no maker states the host link, such as for GPUs that are soldered to their host.
_LINK_BYTES_PER_S: Final = 15_754_000_000
# Multiplications and additions a clock and multiprocessor outside of the tensor cores, in 32 bits.
# Source: CUDA C++ Programming Guide, arithmetic instructions, throughput by compute capability.
_FP32_PER_CLOCK: Final = {(6, 0): 64, (7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}
_FP32_PER_CLOCK_LATER: Final = 128
_CLOCK_KHZ: Final = 1_500_000
_FP64_SHARE: Final = 0.5


def peer_bytes_per_s(gpu: Gpu, num_ranks: int) -> float:
    """The rate at which a GPU sends to the others of its machine: over NVLink, or over the host's
    link, such as between more than two cards that bridges connect in pairs.
    """
    is_bridged = "card" in gpu.form and num_ranks > 2
    if gpu.nvlink_bytes_per_s is None or is_bridged:
        return float(link_bytes_per_s(gpu))
    return gpu.nvlink_bytes_per_s / 2  # stated for both directions together


def link_bytes_per_s(gpu: Gpu) -> int:
    """The bandwidth of the link to the host, each way."""
    return gpu.host_bytes_per_s or _LINK_BYTES_PER_S


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
