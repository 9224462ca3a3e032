"""The rates that attention kernels reach, as their authors and users published them.

    rate(Kernel.FLASH_2, Pass(is_backward=False, is_causal=True), 128, 2048)

Operations a second on an H100 (80 GB, SXM5) in 16 bits, with 16,384 tokens and 2,048 numbers of all
heads together. Operations of the visible pairs alone; of the backward pass 2.5 times those of the
forward pass: five products in place of two.

Source: Shah et al., FlashAttention-3, arXiv:2407.08608, figures 5 (forward) and 6 (backward,
without a mask): FlashAttention 2 and 3, and cuDNN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple


class Kernel(Enum):
    """Implementations of attention; the values are their names in reports."""

    FLASH_2 = "FlashAttention 2"
    FLASH_3 = "FlashAttention 3"
    CUDNN = "cuDNN attention"
    MEMORY_EFFICIENT = "memory-efficient attention"


class Pass(NamedTuple):
    """The pass, and whether a query sees earlier keys alone."""

    is_backward: bool
    is_causal: bool


_LENGTHS: Final = (512, 1024, 2048, 4096, 8192, 16384)
# 10^12 operations a second by size of a head, one for each length.
_FORWARD: Final = {
    (Kernel.FLASH_2, False): {
        64: (282, 306, 318, 321, 322, 324),
        128: (309, 350, 362, 368, 370, 370),
        256: (275, 313, 321, 323, 324, 326),
    },
    (Kernel.FLASH_2, True): {
        64: (180, 229, 262, 284, 295, 299),
        128: (191, 260, 298, 319, 333, 335),
        256: (208, 251, 278, 293, 297, 298),
    },
    (Kernel.FLASH_3, False): {
        64: (333, 392, 460, 476, 496, 497),
        128: (467, 565, 625, 638, 646, 648),
        256: (482, 639, 707, 736, 746, 756),
    },
    (Kernel.FLASH_3, True): {
        64: (197, 265, 371, 420, 460, 473),
        128: (292, 423, 521, 579, 602, 616),
        256: (286, 427, 537, 612, 628, 642),
    },
    (Kernel.CUDNN, False): {
        64: (335, 373, 395, 408, 412, 413),
        128: (497, 574, 617, 609, 600, 595),
        256: (470, 546, 580, 581, 580, 581),
    },
    (Kernel.CUDNN, True): {
        64: (225, 288, 334, 363, 379, 388),
        128: (315, 410, 484, 518, 529, 539),
        256: (308, 391, 450, 483, 497, 509),
    },
}
_BACKWARD: Final = {
    Kernel.FLASH_2: {
        64: (198, 238, 264, 279, 287, 291),
        128: (214, 260, 291, 310, 318, 322),
    },
    Kernel.FLASH_3: {
        64: (272, 363, 422, 453, 472, 474),
        128: (316, 424, 501, 542, 559, 561),
    },
    Kernel.CUDNN: {
        64: (266, 348, 395, 417, 432, 433),
        128: (305, 408, 465, 499, 518, 516),
    },
}
# The kernel that PyTorch calls memory-efficient, as a share of FlashAttention 2's rate. Source:
# Dao-AILab/flash-attention, issue 416, xformers beside Flash2: forward 0.55 to 0.82, backward 0.29
# to 0.53 on one GPU; the middle of both. facebookresearch/xformers, issue 1074, has 0.5 forward.
_MEMORY_EFFICIENT: Final = {False: 0.68, True: 0.41}


def rate(kernel: Kernel, which: Pass, head_dim: int, length: int) -> float:
    """Operations a second on an H100 that has enough of them.

    Between lengths and sizes of a head, the time of an operation is linear in the one's inverse and
    the other's logarithm. Assumes: below 64, a head takes as long by the root of its size; the mask
    slows the backward pass as it does the forward pass.
    """
    if kernel is Kernel.MEMORY_EFFICIENT:
        share = _MEMORY_EFFICIENT[which.is_backward]
        return share * rate(Kernel.FLASH_2, which, head_dim, length)
    if which.is_backward:
        table = _BACKWARD[kernel]
        masked, full = (
            rate(kernel, Pass(is_backward=False, is_causal=causal), head_dim, length)
            for causal in (which.is_causal, False)
        )
        return _at(table, head_dim, length) * masked / full
    return _at(_FORWARD[kernel, which.is_causal], head_dim, length)


def _at(table: Mapping[int, tuple[int, ...]], head_dim: int, length: int) -> float:
    sizes = sorted(table)
    size = min(max(head_dim, sizes[0]), sizes[-1])
    below = max(known for known in sizes if known <= size)
    above = min(known for known in sizes if known >= size)
    times = [_time_of_an_operation(table[known], length) for known in (below, above)]
    share = math.log(size / below) / math.log(above / below) if above > below else 0.0
    likely = times[0] + share * (times[1] - times[0])
    return 1e12 / likely * min(1.0, math.sqrt(head_dim / sizes[0]))


def _time_of_an_operation(rates: tuple[int, ...], length: int) -> float:
    """The time of 10^12 operations, linear in the inverse length, also below the shortest."""
    inverse = 1 / min(max(length, 1), _LENGTHS[-1])
    place = next((n for n, known in enumerate(_LENGTHS) if known >= length), len(_LENGTHS) - 1)
    right = max(place, 1)
    left = right - 1
    share = (inverse - 1 / _LENGTHS[left]) / (1 / _LENGTHS[right] - 1 / _LENGTHS[left])
    return 1 / rates[left] + share * (1 / rates[right] - 1 / rates[left])
