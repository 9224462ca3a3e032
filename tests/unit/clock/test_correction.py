"""The clock, corrected by kernels of a real step: made-up measurements."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from ullage.clock.correction import Correction, demangle, find_correction
from ullage.clock.costs import cost_of
from ullage.clock.given_work import Copy, GivenWork, KernelLaunch, Product
from ullage.facts.gpus import find_gpu
from ullage.log.kernel_times import KernelTime, KernelTimes

H100 = find_gpu("h100-80gb")
MANGLED = "_ZN2at6native29vectorized_elementwise_kernelILi4EEEvi"
NAME = "void at::native::vectorized_elementwise_kernel<4>(int)"
ADD = KernelLaunch(MANGLED, (1024, 1, 1), 128, (1 << 24, 1 << 24))
WIDER = KernelLaunch(MANGLED, (2048, 1, 1), 128, (1 << 25, 1 << 25))
LINEAR = Product(4096, 8192, 1024, 1, "bfloat16", 2)
COST = partial(cost_of, H100)


def seconds(work: GivenWork) -> float:
    return COST(work).duration.s


def find(*kernels: KernelTime, works: tuple[GivenWork, ...] = (ADD, LINEAR)) -> Correction:
    return find_correction(KernelTimes(H100.name, False, kernels), works, COST)  # noqa: FBT003


def test_names_of_kernels_are_those_of_profilers() -> None:
    assert demangle(MANGLED) == NAME
    assert demangle("triton_poi_fused_add_0") == "triton_poi_fused_add_0" and demangle("") == ""


def test_a_kind_takes_as_many_times_as_long_as_was_measured() -> None:
    """Two additions took 1.5 times as long as the clock says, a product 0.9 times."""
    correction = find(
        KernelTime(NAME, "", (1024, 1, 1, 128), 2, 2 * 1.5 * seconds(ADD)),
        KernelTime("aten::mm", "bfloat16", (8192, 4096, 1024, 1), 3, 3 * 0.9 * seconds(LINEAR)),
    )
    assert correction.factors == pytest.approx(
        {"memory-bound kernels": 1.5, "matrix products in bfloat16": 0.9}
    )
    # All work of the kind, and both ends with the likely value.
    before, after = COST(WIDER).duration, correction.of(WIDER, COST(WIDER)).duration
    assert (after.low_s, after.s, after.high_s) == pytest.approx(
        (1.5 * before.low_s, 1.5 * before.s, 1.5 * before.high_s)
    )
    assert after.basis.endswith("times 1.50, as measured")


def test_a_factor_is_that_of_all_seconds_and_not_the_mean_of_quotients() -> None:
    long = Product(8192, 8192, 8192, 1, "bfloat16", 2)
    correction = find(
        KernelTime("aten::mm", "bfloat16", (8192, 4096, 1024, 1), 1, 9 * seconds(LINEAR)),
        KernelTime("aten::mm", "bfloat16", (8192, 8192, 8192, 1), 1, seconds(long)),
    )
    expected = (9 * seconds(LINEAR) + seconds(long)) / (seconds(LINEAR) + seconds(long))
    assert correction.factors["matrix products in bfloat16"] == pytest.approx(expected)


def test_products_of_another_precision_run_on_other_units() -> None:
    measured = KernelTime("aten::mm", "fp32", (8192, 4096, 1024, 1), 1, 1.0)
    correction = find(measured)
    assert correction.of(LINEAR, COST(LINEAR)) == COST(LINEAR)
    single = replace(LINEAR, precision="fp32", result_bytes=4)
    assert correction.of(single, COST(single)).duration.s == pytest.approx(1.0)


def test_what_no_equal_kernel_was_measured_of_stays() -> None:
    other_grid = KernelTime(NAME, "", (1025, 1, 1, 128), 1, 1.0)
    other_threads = KernelTime(NAME, "", (1024, 1, 1, 256), 1, 1.0)
    correction = find(other_grid, other_threads)
    assert not correction.factors and correction.of(ADD, COST(ADD)) == COST(ADD)
    (left,) = correction.basis
    assert left.startswith("not corrected by measurements: ")


def test_the_basis_says_what_was_corrected_by_how_much_and_what_was_not() -> None:
    correction = find(KernelTime(NAME, "", (1024, 1, 1, 128), 1, 2e-3))
    first, last = correction.basis
    factor = 2e-3 / seconds(ADD)
    assert first == (
        f"memory-bound kernels: {factor:.2f} times the clock's seconds, as measured on this GPU: "
        "1 shape, 2 ms of a step"
    )
    assert last == (
        "not corrected by measurements: other kinds of work, copies, messages, and the host"
    )
    work = Copy("to device", 1 << 20, is_pinned=True)
    assert correction.of(work, COST(work)) == COST(work)
