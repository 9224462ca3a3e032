"""The seconds of operations and steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ullage.gpus.catalog import find_gpu
from ullage.gpus.peaks import flops_per_s
from ullage.plan.costs.blocks import Block
from ullage.plan.costs.roofline import LAUNCH_S, operation_seconds, step_seconds
from ullage.trace.model import Record
from ullage.trace.work import Operation, Work

H100 = find_gpu("h100-80gb")


def operation(
    *, module: int = 0, part: str = "forward", flops: int = 0, num_bytes: int = 0,
    link_bytes: int = 0, num: int = 1, precision: str = "bfloat16",
) -> Operation:  # fmt: skip
    """One operation."""
    return Operation(module, part, "aten::x", precision, flops, num_bytes, link_bytes, 0, 0, 1, num)


def test_a_matrix_product_takes_its_operations_at_the_rate_of_the_tensor_cores() -> None:
    seconds = operation_seconds(operation(flops=989_400_000_000, num_bytes=1), H100)
    assert seconds == pytest.approx(1e-3, rel=0.01)  # NVIDIA: 989.4 TFLOP/s dense


def test_what_only_moves_bytes_takes_the_bandwidth() -> None:
    num_bytes = H100.bandwidth_bytes_per_s // 100
    assert operation_seconds(operation(num_bytes=num_bytes), H100) == pytest.approx(0.01)


def test_a_small_kernel_takes_its_launch() -> None:
    assert operation_seconds(operation(num_bytes=4), H100) == LAUNCH_S


def test_float32_runs_outside_of_the_tensor_cores() -> None:
    # 132 SMs x 128 lanes x 2 x 1.98 GHz = 66.9 TFLOP/s, as NVIDIA states for the H100 SXM.
    assert flops_per_s(H100, "fp32") == pytest.approx(66.9e12, rel=0.01)
    assert flops_per_s(H100, "tf32") > 5 * flops_per_s(H100, "fp32")


def test_copies_cost_what_they_take_longer_than_the_work_beside_them(
    make_record: Callable[..., Record],
) -> None:
    link = int(H100.host_bytes_per_s or 0) // 10  # 0.1 s
    work = H100.bandwidth_bytes_per_s // 25  # 0.04 s
    record = replace(
        make_record(""),
        modules=("", "h.0", "h.1"),
        work=Work(
            (
                operation(module=1, num_bytes=work),
                operation(module=1, num_bytes=link, link_bytes=link),
                operation(module=2, num_bytes=work, num=2),
                operation(module=-1, part="optimizer", num_bytes=work),
            ),
            (),
        ),
    )
    found = step_seconds(record, [Block("h.0", "B"), Block("h.1", "B")], H100)
    assert found.blocks == pytest.approx([0.1, 0.08])
    assert found.step == pytest.approx(0.22)


def test_what_ranks_send_each_other_goes_over_nvlink_where_there_is_one_for_all() -> None:
    sent = operation()._replace(peer_bytes=450_000_000)
    assert operation_seconds(sent, H100, 8) == pytest.approx(1e-3)  # 900 GB/s both ways together
    bridged = find_gpu("rtx-3090")  # 112.5 GB/s over a bridge of two cards
    sent = operation()._replace(peer_bytes=56_250_000)
    assert operation_seconds(sent, bridged, 2) == pytest.approx(1e-3)
    over_host = operation()._replace(link_bytes=56_250_000)
    assert operation_seconds(sent, bridged, 4) == operation_seconds(over_host, bridged)


def test_ranks_share_the_memory_of_the_host_that_steps_their_optimizers() -> None:
    stepped = operation(part="optimizer")._replace(host_bytes=10**9, num_launches=0)
    assert operation_seconds(stepped, H100, 4) == pytest.approx(
        4 * operation_seconds(stepped, H100)
    )
