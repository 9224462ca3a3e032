"""The cost of matrix products and convolutions.

product_cost(find_gpu("h100"), Product(4096, 4096, 4096, 1, "bfloat16", 2))
"""

from __future__ import annotations

import math
import re
import struct
from dataclasses import replace
from typing import Final

from ullage.clock.cost import Category, Cost
from ullage.clock.costs.traffic import Traffic, at_least, moved, start_s
from ullage.clock.duration import Duration, Width, around
from ullage.clock.given_work import Convolution, KernelLaunch, Product
from ullage.clock.kernels import matrix_product, memory_bound, packed_product
from ullage.clock.work import ITEMSIZES, MatrixProduct
from ullage.facts.gpus import Gpu
from ullage.facts.gpus.peaks import flops_per_s

_QUANTISED: Final = {"float8_e4m3fn", "float8_e5m2", "float4_e2m1fn_x2"}
# Convolutions, as multiples of a matrix product of as many operations and bytes. Assumed: cuDNN's
# implicit products reach 0.7 of one, and gradients 0.6; between 0.35 of it and a tenth more, since
# channels and images are smaller than a product's sides.
_CONVOLUTION: Final = {"forward": 0.7, "backward data": 0.6, "backward filter": 0.6}
_CONVOLUTION_WIDTH: Final = Width(0.6, 2.0)
# Convolutions of few channels a group do not fill the tensor cores: bytes, with this much more.
_GROUPED_WIDTH: Final = Width(0.6, 4.0)
_GROUPED: Final = 2.0
# Kernels whose shape only the sizes of their operands tell.
_TEMPLATE_WIDTH: Final = Width(0.5, 2.0)
# A pointer into a server's cache, in bytes of a structure that a product never sets.
_LEFT_BYTES, _LEFT_TIMES = 1 << 30, 16
# Source: cutlass, include/cutlass/gemm/kernel/sm90_gemm_tma_warpspecialized.hpp, Params.
_SHAPE: Final = struct.Struct("<5i")
_UNIVERSAL: Final = re.compile(r"cutlass_3x_gemm|GemmUniversalIN4cute5tupleIJiiiiEEE")
_MOST: Final = 1 << 24
# Its template begins with the types of both factors.
_MARLIN: Final = re.compile(r"6MarlinILl(\d+)ELl(\d+)E")
_FACTORS: Final = (
    (re.compile(r"float_e2m1|nv_float4|fp4"), "float4_e2m1fn_x2"),
    (re.compile(r"float_e4m3|float_e5m2|fp8"), "float8_e4m3fn"),
    (re.compile(r"cutlass_3x_gemmIa|int8"), "int8"),
)
# Two factors, a bias, something to add, and the result.
_MOST_OPERANDS: Final = 5


def product_cost(gpu: Gpu, work: Product) -> Cost:
    """The cost of a product of cuBLAS or cuBLASLt.

    In float8 and float4 the tables have the quantisation of the input in them, which torch does in
    kernels of its own: the likely value is without the time that moving the input takes, and not
    below the lower bound.
    """
    precision = work.precision if work.precision in ITEMSIZES else "fp32"
    shape = MatrixProduct(max(work.m, 1), max(work.n, 1), max(work.k, 1), max(work.batch, 1))
    time = _either_way(gpu, shape, precision)
    if precision in _QUANTISED:
        time = _without_quantisation(gpu, shape, time)
    if precision != work.precision:
        time = replace(time, basis=f"{time.basis}; {work.precision or 'unknown'} as float32")
    extra = (work.result_bytes - 2) * work.m * work.n * work.batch
    if extra > 0 and ITEMSIZES[precision] <= 2:
        longer = memory_bound(gpu, extra).s - start_s(gpu)
        time = replace(time, high_s=time.high_s + longer)
    batch = f"{work.batch}x " if work.batch > 1 else ""
    name = f"matrix product {batch}{work.m}x{work.n}x{work.k}"
    return Cost(time, Category.MATRIX_PRODUCTS, name, shape.ops)


def _either_way(gpu: Gpu, shape: MatrixProduct, precision: str) -> Duration:
    """cuBLAS counts columns first: a linear layer's rows are its n, and the tables' m. Where only
    the other way lies among the measured shapes, that way.
    """
    times = [
        matrix_product(gpu, of, precision) for of in (replace(shape, m=shape.n, n=shape.m), shape)
    ]
    return min(times, key=lambda time: round(time.high_s / time.low_s, 2))


def _without_quantisation(gpu: Gpu, shape: MatrixProduct, time: Duration) -> Duration:
    """Quantisation reads two bytes of each number of the input and writes one."""
    quantised = memory_bound(gpu, 3.0 * shape.n * shape.k * shape.batch).s
    likely = max(time.s - quantised, 1.25 * time.low_s, 0.5 * time.s)
    basis = f"{time.basis}; the likely value without it"
    return Duration(min(time.low_s, likely), min(likely, time.s), time.high_s, basis)


def template_product_cost(gpu: Gpu, launch: KernelLaunch, name: str) -> Cost:
    """The cost of a product in Triton or CUTLASS, of which mostly operands alone are known.

    Assumes: its three largest operands, in numbers of two bytes, are (m, k), (k, n) and (m, n), so
    that their product is (m n k)^2; one far larger than all others is left by an earlier call.
    """
    known = _read_product(launch)
    if known is not None:
        return product_cost(gpu, known)
    marlin = _MARLIN.search(launch.name)
    if marlin is not None and len(launch.operand_bytes) > 2:
        return _packed_cost(gpu, launch, *(_num_bits(int(each)) for each in marlin.groups()))
    largest = _largest(launch)
    operands = [num_bytes / 2 for num_bytes in largest]
    if len(operands) < 3 or min(operands) < 1:
        return Cost(
            moved(gpu, Traffic.of(sum(largest), 0.5, 2.0), "operands once"),
            Category.MATRIX_PRODUCTS,
            name,
        )
    volume = math.sqrt(math.prod(operands))
    sides = sorted((max(1, round(volume / numbers)) for numbers in operands), reverse=True)
    time = _either_way(gpu, MatrixProduct(*sides), "bfloat16")
    basis = f"{time.basis}; shape by the sizes of the three largest operands, of two bytes each"
    width = _TEMPLATE_WIDTH
    time = Duration(time.low_s * width.low, time.s, time.high_s * width.high, basis)
    return Cost(time, Category.MATRIX_PRODUCTS, name, 2.0 * volume)


def _read_product(launch: KernelLaunch) -> Product | None:
    """A product of CUTLASS 3, whose arguments begin with a mode and rows, columns, depth and batch;
    None: it is another.
    """
    if len(launch.arguments) < _SHAPE.size or not _UNIVERSAL.search(launch.name):
        return None
    _, *shape = _SHAPE.unpack_from(launch.arguments)
    m, n, k, batch = shape
    if not all(0 < size < _MOST for size in shape):
        return None
    precision = next((name for word, name in _FACTORS if word.search(launch.name)), "bfloat16")
    return Product(m, n, k, batch, precision, 2)


def _packed_cost(gpu: Gpu, launch: KernelLaunch, left_bits: int, right_bits: int) -> Cost:
    """A product of vLLM's Marlin: its first operands are (m, k), (k, n) and (m, n)."""
    left, right, result = launch.operand_bytes[:3]
    numbers = (8 * left / left_bits, 8 * right / right_bits, result / 2)
    volume = math.sqrt(math.prod(numbers))
    n, m, k = (max(1, round(volume / each)) for each in numbers)
    shape = MatrixProduct(m, n, k)
    time = packed_product(gpu, shape, right)
    width = _TEMPLATE_WIDTH
    time = replace(time, low_s=time.low_s * width.low, high_s=time.high_s * width.high)
    name = f"matrix product {m}x{n}x{k}, weights of {right_bits} bits"
    return Cost(time, Category.MATRIX_PRODUCTS, name, shape.ops)


def _num_bits(scalar_type: int) -> int:
    """The bits of vLLM's number of a type: exponent, mantissa, and sign.

    Source: vllm, csrc/core/scalar_type.hpp, ScalarType::id.
    """
    return max(1, (scalar_type & 0xFF) + (scalar_type >> 8 & 0xFF) + (scalar_type >> 16 & 1))


def _largest(launch: KernelLaunch) -> list[int]:
    first, *others = sorted(launch.operand_bytes[:_MOST_OPERANDS], reverse=True) or [0]
    is_left = len(others) > 2 and first > _LEFT_BYTES and first > _LEFT_TIMES * sum(others)
    return others[:3] if is_left else [first, *others[:2]]


def convolution_cost(gpu: Gpu, work: Convolution) -> Cost:
    """The cost of a convolution: the longer of its operations, at a share of a matrix product's
    rate, and its bytes.

    Assumes: the shares (see above), and channels-last data; the upper bound has a change of layout.
    """
    ops = 2.0 * work.num_macs
    floor = moved(gpu, Traffic.of(work.num_bytes))
    name = f"convolution {work.direction}".strip()
    if work.num_groups > 1 and work.num_macs < 64 * max(work.num_bytes, 1):
        basis = "assumed: few channels of a group, twice the time of their bytes"
        time = around(_GROUPED * floor.s, _GROUPED_WIDTH, basis)
        return Cost(time, Category.CONVOLUTIONS, name, ops)
    precision = work.precision if work.precision in ITEMSIZES else "fp32"
    share = _CONVOLUTION.get(work.direction, min(_CONVOLUTION.values()))
    # The rate of a large product, not above the stated rate.
    large = MatrixProduct(8192, 8192, 8192)
    reached = large.ops / matrix_product(gpu, large, precision).s
    seconds = start_s(gpu) + ops / (share * min(reached, flops_per_s(gpu, precision)))
    basis = f"assumed: {share} of the rate of a large matrix product"
    time = at_least(around(seconds, _CONVOLUTION_WIDTH, basis), floor)
    # Data that are not channels-last are read and written once more.
    layout_s = 2 * (floor.s - start_s(gpu))
    return Cost(replace(time, high_s=time.high_s + layout_s), Category.CONVOLUTIONS, name, ops)
