"""The time of fused attention, forward and backward, by kernel and GPU.

    attention_time(find_gpu("h100"), Kernel.FLASH_2, Attention(8, 16, 16, 128, 2048, 2048),
                   "bfloat16", is_backward=True)

By the published rates on an H100 (attention_rates.py), and on other GPUs by published multiples of
them. NVIDIA's tables are not used here: they are of inference engines, whose kernels read keys and
values from pages, and reach 0.55 to 0.85 of what is published of the same kernels on an A100.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Final, NamedTuple

from ullage.clock.costs.attention_rates import Kernel, Pass, rate
from ullage.clock.costs.traffic import Traffic, at_least, moved, start_s
from ullage.clock.duration import Duration, Width
from ullage.clock.kernels import matrix_product
from ullage.clock.relatives import is_alike
from ullage.clock.table import load_widths
from ullage.clock.work import ITEMSIZES, Attention, MatrixProduct
from ullage.facts.gpus import Gpu, find_gpu
from ullage.facts.gpus.peaks import flops_per_s

BACKWARD_OPS: Final = 2.5
"""Operations of the backward pass for one of the forward pass: five products in place of two."""
_HOPPER, _AMPERE = "h100-80gb", "a100-80gb"
# How long other published measurements on an H100 take, as multiples of these: FlashAttention 2,
# 0.97 to 1.18 (Dao-AILab/flash-attention, pull requests 1791 and 2688); rounded outward.
_PUBLISHED: Final = Width(0.9, 1.25)
# How long what is assumed of it may make a kernel: a size or length that nobody published.
_ASSUMED: Final = Width(0.75, 1.4)
# The mask in the backward pass: published once, 0.91 times of what is assumed (pull request 1791).
_MASKED: Final = Width(0.85, 1.1)
_MEMORY_EFFICIENT: Final = Width(0.7, 1.5)
# FlashAttention 2 on a B200, as a multiple of an H100: 1.17 forward, 1.15 backward.
# Source: Dao-AILab/flash-attention, issue 1589, heads of 64, 16,384 tokens, without a mask.
_BLACKWELL: Final = 1.16
# FlashAttention 2 on an A100, as a multiple of an H100: 0.73 of the stated 312e12 forward and 0.63
# backward are 0.615 and 0.61 times its best there. Source: Dao, arXiv:2307.08691, section 1.
_AMPERE_SHARE: Final = 0.615
# Rows of queries that a block takes in most of the kernels.
_BLOCK_ROWS: Final = 128
# Single precision takes three products of tensor cores at half the rate of 16 bits, a sixth of it.
# Kernels that do not reach the units' rate in 16 bits lose less. Assumed: a quarter.
# Source: CUTLASS, OpMultiplyAddFastF32 ("3xTF32"), which PyTorch's memory-efficient kernels use.
_SINGLE_SHARE: Final = 1 / 4


class _Reached(NamedTuple):
    """A rate, the interval around the time, and its basis."""

    ops_per_s: float
    width: Width
    basis: str


def attention_time(
    gpu: Gpu,
    kernel: Kernel,
    work: Attention,
    precision: str,
    *,
    is_backward: bool,
    num_blocks: int = 0,
) -> Duration:
    """The time of attention.

    Args:
        precision: torch's name of the operands' type; "fp32" and "tf32" for float32.
        num_blocks: thread blocks of the launch; 0: not known.

    Ignores: sliding windows, dropout and biases.
    """
    work = replace(work, itemsize=ITEMSIZES.get(precision, 4.0))
    ops = work.ops * (BACKWARD_OPS if is_backward else 1.0)
    # Gradients are read and written beside what they belong to.
    num_bytes = work.num_bytes * (2.0 if is_backward else 1.0)
    floor = moved(gpu, Traffic.of(num_bytes))
    reached = _reached(gpu, kernel, work, Pass(is_backward, work.is_causal))
    if work.itemsize > 2:
        reached = _Reached(
            reached.ops_per_s * _SINGLE_SHARE,
            reached.width.joined(_ASSUMED),
            f"{reached.basis}; single precision at a quarter of it",
        )
    blocks = num_blocks or work.batch * work.heads * math.ceil(work.q_len / _BLOCK_ROWS)
    # It takes longer for the multiprocessors that have nothing to do: at least those without a
    # block, at most the whole last round.
    rounds = blocks / gpu.num_multiprocessors
    least, most = max(1.0, 1 / rounds), math.ceil(rounds) / rounds
    start, seconds, width = start_s(gpu), ops / reached.ops_per_s, reached.width
    likely = seconds * math.sqrt(least * most)
    low_s = min(likely * width.low, seconds * least * width.low)
    high_s = max(likely * width.high, seconds * most * width.high)
    time = Duration(start / 2 + low_s, start + likely, start + high_s, reached.basis)
    return at_least(time, floor)


def _reached(gpu: Gpu, kernel: Kernel, work: Attention, which: Pass) -> _Reached:
    on_hopper = rate(kernel, which, work.head_dim, work.kv_len)
    basis = f"{kernel.value} by published rates (arXiv:2407.08608)"
    width = _PUBLISHED
    if work.head_dim not in (64, 128) or work.kv_len < 512:
        width = width.joined(_ASSUMED)
    if which.is_backward and which.is_causal:
        width = width.joined(_MASKED)
    if kernel is Kernel.MEMORY_EFFICIENT:
        width = width.joined(_MEMORY_EFFICIENT)
        basis += ", a share of FlashAttention 2's"
    hopper, ampere = find_gpu(_HOPPER), find_gpu(_AMPERE)
    if is_alike(gpu, hopper):
        return _Reached(on_hopper, width, basis)
    major = gpu.compute_capability[0]
    widths = load_widths()
    if major == 9 or (major == 10 and kernel in (Kernel.CUDNN, Kernel.FLASH_3)):
        times = flops_per_s(gpu, "bfloat16") / flops_per_s(hopper, "bfloat16")
        width = width.joined(widths.other_architecture)
        return _Reached(on_hopper * times, width, f"{basis}, scaled by the stated rates")
    if major == 10:
        times = _BLACKWELL * gpu.num_multiprocessors / find_gpu("b200").num_multiprocessors
        width = width.joined(widths.same_architecture)
        return _Reached(on_hopper * times, width, f"{basis}, 1.16 times of H100")
    is_near = is_alike(gpu, ampere)
    width = width.joined(widths.same_architecture if is_near else widths.other_architecture)
    flash = kernel if kernel is Kernel.MEMORY_EFFICIENT else Kernel.FLASH_2
    on_ampere = _AMPERE_SHARE * rate(flash, which, work.head_dim, work.kv_len)
    times = _large_product(gpu) / _large_product(ampere)
    note = "" if is_near else ", scaled by large matrix products"
    return _Reached(on_ampere * times, width, f"{basis}, {_AMPERE_SHARE} times of H100{note}")


@cache
def _large_product(gpu: Gpu) -> float:
    """The rate of a large product, which knows throttled clocks that stated rates do not."""
    precision = "bfloat16" if gpu.tensor_ops_per_s.bf16 else "float16"
    work = MatrixProduct(8192, 8192, 8192)
    return work.ops / matrix_product(gpu, work, precision).s
