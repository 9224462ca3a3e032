"""The cost of products in groups, such as of experts: torch._grouped_mm, _scaled_grouped_mm.

grouped_cost(find_gpu("h100-80gb"), Groups(8, 4096, 28672, 4096, is_weight=False), "bfloat16")

Two kernels are launched for one: the first has a thread for each group, and the tensors; the
second multiplies, and its arguments are in memory that the first has filled. The first is counted
with the time of both.

Assumes: the rows are shared out among the groups evenly, which the phantom cannot know. The
interval is that of measured layers of experts (docs/results/time.md); each group fills
tiles of 128 rows, so that the upper bound has them full.
Source: pytorch, aten/src/ATen/native/cuda/GroupMM.cu and GroupMMCommon.cuh.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final, NamedTuple

from ullage.clock.cost import Category, Cost
from ullage.clock.costs.traffic import start_s
from ullage.clock.duration import Duration, Width
from ullage.clock.given_work import KernelLaunch
from ullage.clock.kernels import matrix_product
from ullage.clock.work import MatrixProduct
from ullage.facts.gpus import Gpu

_TILE: Final = 128
# Of layers of experts on an H100 nine in ten take from 0.7 to 1.8 times of what is predicted.
_MEASURED: Final = Width(0.7, 1.8)
# Of the first kernel's blocks: its own memory, then result and factors.
_TENSORS: Final = slice(1, 4)
_FLOAT8: Final = "float_e4m3_t"


class Groups(NamedTuple):
    """Products in groups.

    Attributes:
        num: groups.
        rows: of all groups together.
        columns, length: of the matrix of a group: (length, columns).
        is_weight: the matrices of the groups are the result: gradients, sums over the rows.
    """

    num: int
    rows: int
    columns: int
    length: int
    is_weight: bool


def find_groups(launch: KernelLaunch) -> Groups | None:
    """The groups that the first kernel's launch states; None: it does not state enough.

    Of rows x length, rows x columns, and groups x length x columns numbers, the last is the result
    or the second factor; the larger of these two is taken for it.
    """
    sizes = launch.operand_bytes[_TENSORS]
    if len(sizes) < 3 or min(sizes) < 1:
        return None
    num = max(1, launch.block_threads)
    itemsize = 1 if _FLOAT8 in launch.name else 2
    result, left, right = (
        size / each for size, each in zip(sizes, (2, itemsize, itemsize), strict=True)
    )
    is_weight = result > left
    matrices, wide, long = (result, left, right) if is_weight else (left, result, right)
    rows = math.sqrt(wide * long * num / matrices)
    columns, length = (max(1, round(size / rows)) for size in (wide, long))
    return Groups(num, max(1, round(rows)), columns, length, is_weight)


def grouped_cost(gpu: Gpu, groups: Groups, precision: str) -> Cost:
    """The cost of all groups together, each with as many rows."""
    rows = max(1, round(groups.rows / groups.num))
    shape = MatrixProduct(rows, groups.columns, groups.length, groups.num)
    fill = math.ceil(rows / _TILE) * _TILE / rows
    if groups.is_weight:
        shape = MatrixProduct(groups.length, groups.columns, rows, groups.num)
        fill = 1.0
    time = matrix_product(gpu, shape, precision)
    basis = f"{time.basis}; groups with equally many rows, assumed"
    low_s = min(time.low_s, _MEASURED.low * time.s)
    high_s = max(time.high_s, _MEASURED.high * time.s, min(fill, 2.0) * time.s)
    name = f"grouped product {groups.num}x {rows}x{groups.columns}x{groups.length}"
    flops = 2.0 * groups.rows * groups.columns * groups.length
    return Cost(
        replace(time, low_s=low_s, high_s=high_s, basis=basis),
        Category.MATRIX_PRODUCTS,
        name,
        flops,
    )


def precision_of_groups(name: str) -> str:
    """Torch's name of the factors' type, by the first kernel's."""
    return "float8_e4m3fn" if _FLOAT8 in name else "bfloat16"


def multiplied_cost(gpu: Gpu, name: str) -> Cost:
    """The second kernel, whose time is counted with the first."""
    start = start_s(gpu)
    time = Duration(0.0, start, 2 * start, "grouped products: counted with their preparation")
    return Cost(time, Category.MATRIX_PRODUCTS, name)
