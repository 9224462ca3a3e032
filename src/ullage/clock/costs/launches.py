"""The cost of a kernel launch, by the kernel's name.

launch_cost(find_gpu("h100"), KernelLaunch("_ZN2at6native29vectorized_elementwise_kernel...",
                                           (4096, 1, 1), 128, (2**24, 2**24), 0, 2))
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from ullage.clock.cost import Category, Cost
from ullage.clock.costs.attention import BACKWARD_OPS, attention_time
from ullage.clock.costs.attention_launches import AttentionLaunch, read_attention
from ullage.clock.costs.attention_rates import Kernel
from ullage.clock.costs.grouped import (
    find_groups,
    grouped_cost,
    multiplied_cost,
    precision_of_groups,
)
from ullage.clock.costs.kernel_names import Rule, rule_of, short_name
from ullage.clock.costs.operands import Moves, traffic_of
from ullage.clock.costs.products import template_product_cost
from ullage.clock.costs.traffic import Traffic, at_least, moved, start_s
from ullage.clock.duration import Duration
from ullage.clock.given_work import FusedAttention, KernelLaunch
from ullage.clock.interconnect import Interconnect
from ullage.clock.kernels import attention_decode
from ullage.clock.table import load_widths
from ullage.clock.work import Attention
from ullage.facts.gpus import Gpu
from ullage.facts.gpus.peaks import peer_bytes_per_s

# Operations that count for the utilisation: the backward pass has four products, since the fifth
# repeats one of the forward pass. Source: Chowdhery et al., PaLM, arXiv:2204.02311, appendix B.
_COUNTED_BACKWARD: Final = 2.0
_TEMPLATE_BLOCK: Final = 128
# Keys in pages: the kernel of an inference engine gets the cache of all requests. It stands among
# the first operands of the structure, behind the queries.
_CACHE_BYTES, _CACHE_SHARE, _CACHE_PLACES = 1 << 30, 16, 3
_PAGED: Final = (
    "keys are in pages: how many are read is not in the launch; without them, 64 bytes a thread"
)
# A round of one block that reads two numbers, one by the other's value. Assumed: 0.8 us, as two
# accesses to the memory of 0.4 us (Luo et al., arXiv:2402.13499, table 4: 0.25 to 0.5 us).
_ROUND_S: Final = 0.8e-6
# What a thread has in flight, assumed to be four accesses of 16 bytes, and the latency of memory
# (the same source); a multiprocessor's port to the cache: 64 bytes a clock (NVIDIA, A100 and H100
# whitepapers, "L2 cache").
_IN_FLIGHT, _LATENCY_S, _PORT_BYTES, _CLOCK_KHZ = 64, 0.6e-6, 64, 1_500_000
# Numbers of 16 bits were compared on Hopper, whose multiprocessors have a third more bandwidth each
# to fill. Assumed: before it they are as fast as with wide accesses.
_FAST_MEMORY, _HALF_BEFORE_HOPPER = (9, 0), 1.05
# Without arguments, blocks may be partly filled; of FlashAttention 3 the mask is not read either.
_UNREAD: Final = 1.5
# One token chooses few of all experts; for many, the products take longer than their bytes.
_FEW_EXPERTS, _MANY_ROWS = 0.02, 5.0
# A sliding window, whose width is not read, may hide most pairs.
_WINDOW_LOW: Final = 0.1


def launch_cost(gpu: Gpu, launch: KernelLaunch, links: Interconnect) -> Cost:
    """The cost of a launch."""
    rule = rule_of(launch.name)
    name = short_name(launch.name)
    if rule is Rule.ATTENTION and _is_paged(launch):
        num_bytes = launch.num_blocks * launch.block_threads * _IN_FLIGHT
        time = moved(gpu, Traffic.of(num_bytes, 0.5, 2.0), _PAGED)
        return Cost(time, Category.ATTENTION, name)
    if rule is Rule.ATTENTION:
        attention = read_attention(launch)
        if attention is not None:
            return _attention(gpu, attention, launch, name)
        return Cost(_by_bytes(gpu, launch), Category.ATTENTION, name)
    if rule is Rule.TEMPLATE_ATTENTION:
        return _template_attention(gpu, launch, name)
    if rule is Rule.GROUPED:
        return multiplied_cost(gpu, "grouped product")
    groups = find_groups(launch) if rule is Rule.GROUPS else None
    if groups is not None:
        return grouped_cost(gpu, groups, precision_of_groups(launch.name))
    if rule in (Rule.PRODUCT, Rule.GROUPS):
        return template_product_cost(gpu, launch, name)
    if rule is Rule.EXPERTS:
        return Cost(_all_experts(gpu, launch), Category.MATRIX_PRODUCTS, name)
    if rule is Rule.PEERS:
        return Cost(_peers(gpu, launch, links), Category.COMMUNICATION, name)
    moves = traffic_of(launch, rule)
    if rule is Rule.ELEMENTWISE and gpu.compute_capability < _FAST_MEMORY:
        moves = moves._replace(slower=min(moves.slower, _HALF_BEFORE_HOPPER))
    time = moved(gpu, moves.traffic, moves.note, slower=moves.slower)
    if rule is Rule.LOSS:
        time = _in_rounds(gpu, launch, moves)
    elif rule is not Rule.SMALL:
        time = at_least(time, _by_threads(gpu, launch, moves))
    category = Category.UNKNOWN if rule is Rule.UNKNOWN else Category.MEMORY_BOUND
    return Cost(time, category, name)


def _is_paged(launch: KernelLaunch) -> bool:
    """True if one of the first operands, which are queries, keys and values, or keys and the result
    where a CUDA graph owns the queries, is so much larger that it is a server's whole cache.

    Later ones may be such that an earlier call left in what the structure never sets.
    """
    *others, largest = sorted(launch.operand_bytes[:_CACHE_PLACES]) or [0]
    return largest > _CACHE_BYTES and largest > _CACHE_SHARE * sum(others)


def fused_attention_cost(gpu: Gpu, work: FusedAttention) -> Cost:
    """The cost of cuDNN's attention. Where it is not known whether there is a mask, the likely
    value is with it, the upper bound without.
    """
    shape = Attention(
        work.batch, work.heads, max(work.kv_heads, 1), work.head_dim, work.q_len, work.kv_len,
        is_causal=work.is_causal is not False,
    )  # fmt: skip
    time = attention_time(gpu, Kernel.CUDNN, shape, work.precision, is_backward=work.is_backward)
    if work.is_causal is None:
        full = attention_time(
            gpu, Kernel.CUDNN, replace(shape, is_causal=False), work.precision,
            is_backward=work.is_backward,
        )  # fmt: skip
        basis = f"{time.basis}; the mask is not known"
        time = Duration(time.low_s, time.s, max(time.high_s, full.high_s), basis)
    part = "backward" if work.is_backward else "forward"
    ops = shape.ops * (_COUNTED_BACKWARD if work.is_backward else 1.0)
    return Cost(time, Category.ATTENTION, f"cuDNN attention {part}", ops)


def _attention(gpu: Gpu, attention: AttentionLaunch, launch: KernelLaunch, name: str) -> Cost:
    work = attention.work
    if attention.part == "gradients":
        # The gradient of the output, the output, and sums in 32 bits, each once.
        numbers = work.batch * work.heads * work.q_len * work.head_dim
        time = moved(gpu, Traffic.of(8.0 * numbers, 0.75, 1.25), "by the grid of attention")
        return Cost(time, Category.ATTENTION, name)
    is_backward = attention.part == "backward"
    if attention.part == "decode" and work.q_len <= 8:
        time = attention_decode(gpu, work, attention.precision)
    else:
        time = attention_time(
            gpu, attention.kernel, work, attention.precision,
            is_backward=is_backward, num_blocks=launch.num_blocks,
        )  # fmt: skip
    if not attention.is_exact:
        basis = f"{time.basis}; lengths by the grid or the operands"
        time = Duration(time.low_s / 2, time.s, time.high_s * _UNREAD, basis)
    if attention.is_local:
        time = replace(time, low_s=time.low_s * _WINDOW_LOW, basis=f"{time.basis}; a window")
    part = {"decode": "forward, keys split"}.get(attention.part, attention.part)
    ops = work.ops * (_COUNTED_BACKWARD if is_backward else 1.0)
    return Cost(time, Category.ATTENTION, f"{attention.kernel.value} {part}", ops)


def _template_attention(gpu: Gpu, launch: KernelLaunch, name: str) -> Cost:
    """Attention in Triton: the grid's first size is that of blocks of 128 queries, or of 128
    queries and 128 keys each of the backward pass; the others are those of sequences and heads.

    Assumes: queries as long as keys, half of the pairs visible; between a tenth and all of them.
    """
    is_backward = "backward" in launch.name or "bwd" in launch.name or "zeros" in launch.name
    blocks, *rest = launch.grid
    length = max(1, blocks * _TEMPLATE_BLOCK // (2 if is_backward else 1))
    heads = max(1, math.prod(rest))
    numbers = max(launch.operand_bytes[:4], default=1) / 2
    head_dim = min(256, max(16, 16 * round(numbers / (length * heads) / 16)))
    work = Attention(1, heads, heads, head_dim, length, length)
    time = attention_time(gpu, Kernel.FLASH_2, work, "bfloat16", is_backward=is_backward)
    basis = f"{time.basis}; shape by grid and operands, half of the pairs visible"
    time = Duration(0.2 * time.low_s, time.s, 2.2 * time.high_s, basis)
    times = _COUNTED_BACKWARD if is_backward else 1.0
    return Cost(time, Category.ATTENTION, name, work.ops * times)


def _by_bytes(gpu: Gpu, launch: KernelLaunch) -> Duration:
    """Attention of which only the bytes are known: operations may take far longer."""
    num_bytes = float(sum(launch.operand_bytes) + launch.other_bytes)
    time = moved(gpu, Traffic.of(num_bytes, 0.5, 2.0), "attention by its bytes alone")
    return Duration(time.low_s, BACKWARD_OPS * time.s, 10 * time.high_s, time.basis)


def _all_experts(gpu: Gpu, launch: KernelLaunch) -> Duration:
    """Products of experts, by their bytes: which experts the tokens chose is not in the launch."""
    num_bytes = float(sum(launch.operand_bytes) + launch.other_bytes)
    time = moved(gpu, Traffic.of(num_bytes, _FEW_EXPERTS), "the weights of all experts")
    return replace(time, high_s=_MANY_ROWS * time.high_s)


def _in_rounds(gpu: Gpu, launch: KernelLaunch, moves: Moves) -> Duration:
    """One block that takes all rows in turn."""
    time = moved(gpu, moves.traffic, moves.note)
    rows = moves.traffic.likely / 40
    rounds = rows / max(1, launch.num_blocks * launch.block_threads)
    likely = time.s + rounds * _ROUND_S
    basis = f"{time.basis}; rounds of 0.8 us, assumed"
    return Duration(time.low_s + rounds * _ROUND_S / 4, likely, 2 * likely, basis)


def _by_threads(gpu: Gpu, launch: KernelLaunch, moves: Moves) -> Duration:
    """The time in which the launch's threads can have moved the bytes, where they are few."""
    resident = gpu.num_multiprocessors * gpu.threads_per_multiprocessor
    threads = min(launch.num_blocks * launch.block_threads, resident)
    clock = (gpu.clock_khz or _CLOCK_KHZ) * 1000
    by_port = min(launch.num_blocks, gpu.num_multiprocessors) * _PORT_BYTES * clock
    rate = min(max(threads, 1) * _IN_FLIGHT / _LATENCY_S, max(by_port, 1.0))
    start, seconds = start_s(gpu), moves.traffic.likely / rate
    basis = f"{moves.note}; few threads, 64 bytes in flight each".removeprefix("; ")
    return Duration(start / 2 + seconds / 4, start + seconds, start + 2 * seconds, basis)


def _peers(gpu: Gpu, launch: KernelLaunch, links: Interconnect) -> Duration:
    """Kernels that read other GPUs' memory: the largest operand over the link."""
    rate = links.within_bytes_per_s or peer_bytes_per_s(gpu, links.gpus_per_machine)
    largest = max(launch.operand_bytes, default=0)
    likely = start_s(gpu) * 2 + largest / rate
    low = load_widths().constant_rate.low
    basis = "the largest operand once over the link to other GPUs"
    return Duration(likely * low / 2, likely, likely * 3, basis)
