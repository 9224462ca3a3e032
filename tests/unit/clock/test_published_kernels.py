"""Kernels that move memory, beside times that others published of them.

Rows that set a factor of the model say so; the others are not in it.
Sources: pytorch/pytorch, pull requests 141959 and 145746 (gelu on an H100), 174553 (a B200), 87445
(layer norm on an A100); meta-pytorch/KernelAgent, pull request 133 (layer norm on a GB300).
"""

from __future__ import annotations

import pytest

from ullage.clock.costs import cost_of
from ullage.clock.given_work import KernelLaunch
from ullage.facts.gpus import find_gpu

GELU = (
    "_ZN2at6native29vectorized_elementwise_kernelILi{}EZZZNS0_18GeluCUDAKernelImpl{}"
    "St5arrayIPcLm2EE"
)
NORM = "_ZN2at6native{}"


def gelu(numbers: int, itemsize: int, vector: int = 4) -> KernelLaunch:
    kind = {1: "IhE", 2: "IN3c108BFloat16EE", 4: "IfE"}[itemsize]
    per_block = 128 * (16 if itemsize == 1 else 8)
    size = numbers * itemsize
    return KernelLaunch(
        GELU.format(vector, kind), (-(-numbers // per_block), 1, 1), 128, (size, size), 0, 2
    )


def norm(kernel: str, rows: int, columns: int, itemsize: int, operands: int) -> KernelLaunch:
    size = rows * columns * itemsize
    return KernelLaunch(NORM.format(kernel), (rows, 1, 1), 128, (size,) * operands, 0, operands)


def layer_norm(rows: int, columns: int, itemsize: int, *, forward: bool) -> list[KernelLaunch]:
    parts = [
        norm("39layer_norm_grad_input_kernel_vectorizedI", rows, columns, itemsize, 3),
        norm("35GammaBetaBackwardCUDAKernelTemplateI", rows, columns, itemsize, 2),
    ]
    first = norm("28vectorized_layer_norm_kernelI", rows, columns, itemsize, 2)
    return [first, *parts] if forward else parts


PUBLISHED = [
    ("h100-80gb", "float32", [gelu(2**24, 4)], 50.6e-6),
    ("h100-80gb", "float32", [gelu(2**26, 4)], 181e-6),
    ("h100-80gb", "float32", [gelu(2**29, 4)], 1409e-6),
    ("h100-80gb", "16 bytes", [gelu(2**26, 2, 8)], 97.6e-6),
    ("h100-80gb", "16 bytes, set", [gelu(2**29, 2, 8)], 743.7e-6),
    ("h100-80gb", "8 bytes", [gelu(2**26, 2)], 109.7e-6),
    ("h100-80gb", "8 bytes, set", [gelu(2**29, 2)], 842.6e-6),
    ("b200", "clone of bytes", [gelu(2**27, 1)], 45.1e-6),
    ("a100-80gb", "both passes", layer_norm(8192, 2048, 2, forward=True), 235.2e-6),
    ("a100-80gb", "both passes, set", layer_norm(8192, 4096, 2, forward=True), 509e-6),
    ("a100-80gb", "both passes", layer_norm(8192, 4096, 4, forward=True), 1043.5e-6),
    ("b300", "backward", layer_norm(16384, 6144, 2, forward=False), 279.4e-6),
    ("b300", "backward, set", layer_norm(65536, 8192, 2, forward=False), 1313.8e-6),
]


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: f"{row[0]}-{row[1]}")
def test_published_times_lie_inside(row: tuple[str, str, list[KernelLaunch], float]) -> None:
    gpu, _, launches, seconds = row
    times = [cost_of(find_gpu(gpu), launch, None).duration for launch in launches]
    low, likely, high = (
        sum(getattr(time, end) for time in times) for end in ("low_s", "s", "high_s")
    )
    assert low <= seconds <= high
    assert likely == pytest.approx(seconds, rel=0.35)
