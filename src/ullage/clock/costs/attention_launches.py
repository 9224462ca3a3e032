"""The work of attention kernels, by their names, grids and arguments.

    read_attention(launch)   # of flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, ...>, ...>

The template arguments in the mangled name tell the size of a head, the rows and columns of a block,
the type, and the mask. The grid tells how many blocks of rows, sequences and heads there are; the
arguments, a structure by value, tell lengths exactly. Its layout differs between versions, so that
it is searched for numbers that agree with the grid; where none do, the grid alone is read.

Source: Dao-AILab/flash-attention, csrc/flash_attn/src/flash.h and flash_*_launch_template.h;
pytorch/pytorch, aten/src/ATen/native/transformers/cuda/mem_eff_attention/kernel_*ward.h.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Final

from ullage.clock.costs.attention_rates import Kernel
from ullage.clock.given_work import KernelLaunch
from ullage.clock.work import Attention

_FLASH: Final = re.compile(
    r"flash_(fwd_kernel|fwd_splitkv_kernel|bwd_dq_dk_dv_loop_seqk_parallel_kernel"
    r"|bwd_dq_dk_dv_loop_kernel|bwd_dot_do_o_kernel|bwd_convert_dq_kernel|bwd_convert_dkv_kernel"
    r"|fwd_splitkv_combine_kernel|bwd_clear_dkvaccum_kernel)"
)
_FLASH_3: Final = re.compile(r"FlashAttn(Fwd|Bwd)Sm\d+")
# Its template has the rows and the columns of a block (flash_fwd_combine_kernel.h).
_FLASH_3_COMBINE: Final = re.compile(r"FlashAttnFwdCombine\w*?ILi(\d+)E\w*?ILi(\d+)E")
_HEAD_DIMS: Final = frozenset({64, 96, 128, 192, 256})
_MOST_HEADS: Final = 1024
_PARTS: Final = {
    "fwd_kernel": "forward",
    "fwd_splitkv_kernel": "decode",
    "bwd_dq_dk_dv_loop_seqk_parallel_kernel": "backward",
    "bwd_dq_dk_dv_loop_kernel": "backward",
}
_TRAITS: Final = re.compile(r"Flash_[fb]wd_kernel_traitsILi(\d+)ELi(\d+)ELi(\d+)E")
# The flags behind the traits: for most kernels dropout, mask, window, ...; of split keys mask, ....
_FLAGS: Final = re.compile(r"Flash_kernel_traitsI.*?E+((?:Lb[01]E){2,})E")
_MEMORY_EFFICIENT: Final = re.compile(
    r"fmha_cutlass([FB])_(f32|f16|bf16)_\w*?_(\d+)x(\d+)(?:_(?:rf|gmem|dropout|k\d+|\w+?))*_sm\d+"
)
_BOUND_K: Final = re.compile(r"_k(\d+)_")
_PRECISIONS: Final = {"f32": "fp32", "f16": "float16", "bf16": "bfloat16"}
# In FlashAttention 2: three pointers and nine strides of eight bytes, then the heads.
_HEADS_OFFSET: Final = 3 * 8 + 9 * 8
# Kinds of masks: none, and from either corner.
_MOST_MASK: Final = 2
_MOST_LENGTH: Final = 1 << 24


@dataclass(frozen=True, slots=True)
class AttentionLaunch:
    """A launch of a kernel of attention.

    Attributes:
        kernel: whose implementation.
        part: "forward", "decode" (keys are split), "backward", or "gradients": a kernel beside the
            backward pass that reads and writes gradients once.
        work: the shape.
        precision: torch's name of the operands' type.
        is_exact: the arguments told lengths and mask; else the grid, as whole blocks, or part of
            it is assumed.
        is_local: a window of keys is visible.
    """

    kernel: Kernel
    part: str
    work: Attention
    precision: str
    is_exact: bool
    is_local: bool = False


def read_attention(launch: KernelLaunch) -> AttentionLaunch | None:
    """Reads the work of an attention kernel; None: the kernel is not known."""
    match = _FLASH.search(launch.name)
    if match is not None:
        return _read_flash(launch, match[1])
    match = _FLASH_3.search(launch.name)
    if match is not None:
        return _read_flash_3(launch, match[1])
    match = _FLASH_3_COMBINE.search(launch.name)
    if match is not None:
        return _read_combination(launch, *map(int, match.groups()))
    match = _MEMORY_EFFICIENT.search(launch.name)
    return None if match is None else _read_memory_efficient(launch, match)


def _read_flash(launch: KernelLaunch, kind: str) -> AttentionLaunch | None:
    traits = _TRAITS.search(launch.name)
    if traits is None:
        return None
    head_dim, rows, columns = (int(number) for number in traits.groups())
    precision = "bfloat16" if "bfloat16" in launch.name else "float16"
    if kind == "fwd_splitkv_combine_kernel":
        # Rows of a block by the size of a head (flash_fwd_launch_template.h).
        count = launch.grid[0] * (4 if head_dim % 128 == 0 else 8 if head_dim % 64 == 0 else 16)
        work = Attention(1, 1, 1, head_dim, count, count, is_causal=False)
        return AttentionLaunch(Kernel.FLASH_2, "gradients", work, precision, is_exact=True)
    part = _PARTS.get(kind, "gradients")
    is_backward = part == "backward"
    block = columns if is_backward else rows
    place = 0 if part == "decode" else 1
    # The flags of the kernel's template, without those of its traits.
    match = _FLAGS.search(launch.name)
    flags = [] if match is None else re.findall("Lb([01])E", match[1])
    is_causal, is_local = (flags[n : n + 1] == ["1"] for n in (place, place + 1))
    numbers = _find_flash_shape(launch, block, is_keys=is_backward)
    if numbers is not None:
        work = Attention(*numbers[:3], head_dim, *numbers[3:], is_causal)
    else:
        blocks, batch, heads = launch.grid
        work = Attention(batch, heads, heads, head_dim, blocks * block, blocks * block, is_causal)
    is_window = is_local and not is_causal
    return AttentionLaunch(Kernel.FLASH_2, part, work, precision, numbers is not None, is_window)


def _read_combination(launch: KernelLaunch, rows: int, columns: int) -> AttentionLaunch:
    """FlashAttention 3's kernel that sums partial results. By its grid, since the buffer of these
    is made for the most sequences and splits, as in a server's CUDA graphs.
    """
    work = Attention(1, 1, 1, columns, launch.num_blocks * rows, 1, is_causal=False)
    precision = "bfloat16" if "bfloat16" in launch.name else "float16"
    return AttentionLaunch(Kernel.FLASH_3, "gradients", work, precision, is_exact=True)


def _find_flash_shape(
    launch: KernelLaunch, block: int, *, is_keys: bool
) -> tuple[int, int, int, int, int] | None:
    """Sequences, heads, heads of keys, and the two lengths, where arguments and grid agree."""
    numbers = _integers(launch.arguments)
    first = _HEADS_OFFSET // 4
    if len(numbers) < first + 3:
        return None
    heads, kv_heads = numbers[first : first + 2]
    blocks, many, few = launch.grid
    if not 0 < kv_heads <= heads or heads % kv_heads:
        return None
    batches = {many} if few == heads else {few // heads} if few % heads == 0 else set()
    for place in range(first + 3, len(numbers) - 2):
        batch, q_len, kv_len = numbers[place : place + 3]
        length = kv_len if is_keys else q_len
        # Deterministic gradients have as many blocks as fill the GPU.
        is_grid = -(-length // block) == blocks or (is_keys and 0 < blocks < -(-length // block))
        if batch in batches and is_grid and all(0 < n < _MOST_LENGTH for n in (q_len, kv_len)):
            return batch, heads, kv_heads, q_len, kv_len
    return None


def _read_flash_3(launch: KernelLaunch, direction: str) -> AttentionLaunch | None:
    """FlashAttention 3, whose grid is the GPU: lengths, size, heads and sequences stand together in
    its structure, and have as many numbers as an operand has bytes.

    Whether there is a mask is not read: most models that train with this kernel have one.
    """
    numbers = _integers(launch.arguments)
    for place in range(len(numbers) - 3):
        length, head_dim, heads, batch = numbers[place : place + 4]
        if head_dim not in _HEAD_DIMS or min(length, heads, batch) < 1 or heads > _MOST_HEADS:
            continue
        num_bytes = 2 * length * head_dim * heads * batch
        if any(num_bytes <= size <= 1.03 * num_bytes for size in launch.operand_bytes):
            work = Attention(batch, heads, heads, head_dim, length, length)
            part = "forward" if direction == "Fwd" else "backward"
            return AttentionLaunch(Kernel.FLASH_3, part, work, "bfloat16", is_exact=False)
    return None


def _read_memory_efficient(launch: KernelLaunch, match: re.Match[str]) -> AttentionLaunch:
    is_backward = match[1] == "B"
    rows = int(match[3])
    blocks, heads, batch = launch.grid
    shape = _find_memory_efficient_shape(launch, 0 if is_backward else rows)
    if shape is not None:
        head_dim, q_len, kv_len, is_causal = shape
    else:
        # A whole block of rows; of the backward pass the grid tells no length. Most models that
        # train with this kernel have a mask.
        bound = _BOUND_K.search(launch.name)
        head_dim = int(bound[1]) if bound and int(bound[1]) <= 256 else 64
        itemsize = 4 if match[2] == "f32" else 2
        largest = max(launch.operand_bytes, default=0)
        by_bytes = largest // (batch * heads * head_dim * itemsize)
        q_len = kv_len = max(1, by_bytes if is_backward else min(blocks * rows, by_bytes))
        is_causal = True
    work = Attention(batch, heads, heads, head_dim, q_len, kv_len, is_causal)
    return AttentionLaunch(
        Kernel.MEMORY_EFFICIENT,
        "backward" if is_backward else "forward",
        work,
        _PRECISIONS[match[2]],
        shape is not None,
    )


def _find_memory_efficient_shape(
    launch: KernelLaunch, rows: int
) -> tuple[int, int, int, bool] | None:
    """The size of a head, the lengths, and whether there is a mask: in the structure stand the
    sizes of keys and values, the lengths of queries and keys, then (forward) another length or
    (backward) the heads, in some versions the heads for each of the keys', and the mask's kind.
    """
    numbers = _integers(launch.arguments)
    for place in range(len(numbers) - 6):
        head_dim, value_dim, q_len, kv_len, heads, mask, later = numbers[place : place + 7]
        is_head = 8 <= head_dim <= 1024 and 8 <= value_dim <= 1024
        is_length = 0 < q_len < _MOST_LENGTH and 0 < kv_len < _MOST_LENGTH
        if not is_head or not is_length or head_dim % 4 or value_dim % 4:
            continue
        if rows and -(-q_len // rows) == launch.grid[0]:
            return head_dim, q_len, kv_len, mask & 0xFF != 0
        if not rows and heads == launch.grid[1]:
            is_grouped = mask > 0 and heads % mask == 0 and later & 0xFF <= _MOST_MASK
            return head_dim, q_len, kv_len, (later if is_grouped else mask) & 0xFF != 0
    return None


def _integers(arguments: bytes) -> tuple[int, ...]:
    count = len(arguments) // 4
    return struct.unpack(f"<{count}i", arguments[: 4 * count])
