"""The time of a step, made up."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ullage.clock.cost import Category
from ullage.clock.step_time import Interval, Share, Span, StepTime


def interval(seconds: float, low: float = 0.92, high: float = 1.14) -> Interval:
    """Seconds, and bounds in proportion."""
    return Interval(low * seconds, seconds, high * seconds)


def share(name: str, busy_s: float, exposed_s: float, num: int) -> Share:
    """A share with bounds in proportion."""
    return Share(name, interval(busy_s), interval(exposed_s), num)


def make_step_time(scale: float = 1.0) -> StepTime:
    """0.412 s: products on stream 0, communication beside them on stream 1, and a pause."""
    categories = (
        share(Category.MATRIX_PRODUCTS.value, 0.258 * scale, 0.258 * scale, 1204),
        share(Category.MEMORY_BOUND.value, 0.071 * scale, 0.067 * scale, 3310),
        share(Category.ATTENTION.value, 0.041 * scale, 0.04 * scale, 96),
        share(Category.COMMUNICATION.value, 0.09 * scale, 0.021 * scale, 52),
        share(Category.COPIES.value, 0.002 * scale, 0.001 * scale, 5),
        share(Category.UNKNOWN.value, 0.004 * scale, 0.003 * scale, 7),
    )
    spans = (
        Span(0.0, 0.01, -1, "cudaStreamSynchronize", "", "", "other", 0),
        Span(0.02, 0.1, 0, "gemm", Category.MATRIX_PRODUCTS.value, "blocks.0", "forward", 2),
        Span(0.05, 0.09, 1, "all-gather", Category.COMMUNICATION.value, "", "forward", 3),
        Span(0.13, 0.2, 0, "gemm", Category.MATRIX_PRODUCTS.value, "blocks.0", "backward", 5),
        Span(0.34, 0.071, 0, "add</script>", Category.MEMORY_BOUND.value, "", "optimizer", 9),
    )
    return StepTime(
        step=interval(0.412 * scale),
        steps=(interval(0.43 * scale), interval(0.412 * scale)),
        device_idle=interval(0.022 * scale),
        host_waits=interval(0.01 * scale),
        categories=categories,
        parts=(
            share("backward", 0.24 * scale, 0.236 * scale, 2200),
            share("forward", 0.12 * scale, 0.119 * scale, 1400),
            share("optimizer", 0.04 * scale, 0.035 * scale, 1074),
        ),
        modules=(
            share("blocks.0", 0.11 * scale, 0.1 * scale, 600),
            share("blocks.1", 0.09 * scale, 0.09 * scale, 400),
            share("", 0.07 * scale, 0.06 * scale, 300),
        ),
        unknown=(share("my_kernel<float, 4>(float*, int)", 0.004 * scale, 0.003 * scale, 7),),
        flops=1.67e14,
        peak_flops_per_s=9.89e14,
        num_tokens=16384,
        num_samples=16,
        spans=spans,
        basis=(
            "matrix products: measurements of an H100 SXM",
            "memory-bound kernels: the share of the bandwidth that they reach; written once",
            "memory-bound kernels: the share of the bandwidth that they reach; read and written",
            "the host: measured here, x 1.0",
        ),
    )


@pytest.fixture(scope="session")
def step_time() -> Callable[..., StepTime]:
    """`make_step_time`."""
    return make_step_time
