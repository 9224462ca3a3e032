"""What `ullage record --kernels` notes of a step: made-up events, as Kineto writes them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ullage.ground.errors import SnapshotError
from ullage.log.field_checks import read
from ullage.log.kernel_times import KernelTime
from ullage.players.inside.steps.kernel_times import KernelTimes, sum_kernels

BF16, FP32 = "c10::BFloat16", "float"


def operator(number: int, name: str, dims: list[list[int]], kind: str = BF16) -> dict[str, Any]:
    arguments = {"External id": number, "Input Dims": dims, "Input type": [kind] * len(dims)}
    return {"cat": "cpu_op", "name": name, "args": arguments}


def kernel(
    number: int, name: str, microseconds: float, grid: tuple[int, int, int] = (8, 1, 1)
) -> dict[str, Any]:
    arguments = {"External id": number, "grid": [*grid], "block": [32, 4, 1]}
    return {"cat": "kernel", "name": name, "dur": microseconds, "args": arguments}


def rows(*events: dict[str, Any], float32: str = "fp32") -> list[list[Any]]:
    found = sum_kernels(events, float32)
    return [[*row[:4], pytest.approx(row[4])] for row in found]


def test_equal_kernels_are_added_up() -> None:
    found = rows(
        operator(1, "aten::add", [[8], [8]]), kernel(1, "add", 2.0), kernel(2, "add", 3.0),
        kernel(3, "add", 4.0, (9, 1, 1)), {"cat": "gpu_memcpy", "name": "Memcpy", "dur": 9.0},
    )  # fmt: skip
    assert found == [
        ["add", "", [8, 1, 1, 128], 2, 5e-6],
        ["add", "", [9, 1, 1, 128], 1, 4e-6],
    ]


def test_a_product_is_all_kernels_of_its_operator() -> None:
    found = rows(
        operator(1, "aten::addmm", [[30], [10, 20], [20, 30]]),
        operator(2, "aten::addmm", [[30], [10, 20], [20, 30]]),
        kernel(1, "gemm", 5.0), kernel(1, "splitKreduce", 1.0), kernel(2, "gemm", 4.0),
    )  # fmt: skip
    assert found == [["aten::addmm", "bfloat16", [10, 30, 20, 1], 2, 10e-6]]


def test_a_batch_of_products_and_float32() -> None:
    shapes = [[7, 10, 20], [7, 20, 30]]
    events = operator(1, "aten::bmm", shapes, FP32), kernel(1, "gemm", 5.0)
    assert rows(*events) == [["aten::bmm", "fp32", [10, 30, 20, 7], 1, 5e-6]]
    assert rows(*events, float32="tf32")[0][1] == "tf32"


def test_a_product_of_another_type_is_a_kernel_like_any_other() -> None:
    events = operator(1, "aten::mm", [[1, 2], [2, 3]], "signed char"), kernel(1, "imma", 5.0)
    assert rows(*events) == [["imma", "", [8, 1, 1, 128], 1, 5e-6]]


def test_a_reader_takes_what_the_recorder_writes() -> None:
    row = [["add", "", [8, 1, 1, 128], 2, 5e-6]]
    assert read(KernelTime, row[0], "kernels") == KernelTime("add", "", (8, 1, 1, 128), 2, 5e-6)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (["add", "", [8, 1, 1], 2, 5e-6], "expected a list of 4 values"),
        (["add", "", [8, 1, 1, -1], 2, 5e-6], r"sizes\[3\] is -1"),
        (["add", "", [8, 1, 1, 1], 2, float("nan")], "expected seconds"),
        (["add", "", [8, 1, 1, 1], 2, -1.0], "seconds is -1.0; expected more"),
        (["add", "", [8, 1, 1, 1], 0, 1.0], "num is 0; expected 1 or more"),
        (["add", 5], "expected a list of name, precision"),
    ],
)
def test_a_damaged_row_is_refused(row: list[Any], says: str) -> None:
    with pytest.raises(SnapshotError, match=says):
        read(KernelTime, row, "kernels")


def test_what_fails_is_a_remark() -> None:
    """Here: CUDA does."""

    def fail() -> None:
        raise RuntimeError("no driver")

    kernels = KernelTimes(SimpleNamespace(cuda=SimpleNamespace(synchronize=fail)))
    kernels.end_step(1)
    assert kernels.remark is not None and "fewer than three steps" in kernels.remark
    kernels.end_step(2)
    kernels.end_step(3)
    assert kernels.rows == [] and kernels.remark == "no times of kernels: RuntimeError: no driver"
