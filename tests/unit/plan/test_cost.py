"""The seconds of operations and steps."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ullage.errors import SpecError
from ullage.gpus.catalog import Gpu, find_gpu
from ullage.gpus.peaks import flops_per_s
from ullage.gpus.rates import Rates, Speed, default_path
from ullage.plan.costs.blocks import Block
from ullage.plan.costs.roofline import (
    LAUNCH_S,
    operation_seconds,
    step_seconds,
    with_rates,
)
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


def measured(**changes: Speed | float) -> Gpu:
    """An H100 of which half of each rate was reached."""
    half = Speed(0.5)
    rates = Rates(
        gpu="h100-80gb", device=H100.name, driver="", torch="", date="",
        matmul={"bfloat16": half}, attention={"forward": half, "backward": Speed(0.25)},
        memory=half, to_device=half, to_host=Speed(0.4), peers=half, launch_s=9e-6, skipped={},
    )  # fmt: skip
    return replace(H100, measured=replace(rates, **changes))


@pytest.mark.parametrize(
    "one",
    [operation(flops=10**12), operation(num_bytes=10**9), operation(link_bytes=10**9)],
    ids=["matmul", "memory", "link"],
)
def test_what_was_measured_takes_the_place_of_what_is_stated(one: Operation) -> None:
    share = 0.4 if one.link_bytes else 0.5  # the slower direction: which it is nobody notes
    stated = operation_seconds(one, H100)
    assert operation_seconds(one, measured()) == pytest.approx(stated / share)


def test_work_takes_its_time_to_begin() -> None:
    one = operation(flops=10**12)
    late = measured(matmul={"bfloat16": Speed(0.5, 1e-3)})
    more = operation_seconds(one, late) - operation_seconds(one, measured())
    assert more == pytest.approx(1e-3)


def test_attention_has_a_rate_of_its_own_each_way() -> None:
    names = ("aten::_scaled_dot_product_flash_attention", "aten::_flash_attention_backward")
    forward, backward = (operation(flops=10**12)._replace(name=name) for name in names)
    seconds = [operation_seconds(one, measured()) for one in (forward, backward)]
    assert seconds[1] == pytest.approx(2 * seconds[0])


def test_a_precision_that_was_not_measured_goes_as_stated() -> None:
    one = operation(flops=10**12, precision="float16")
    assert operation_seconds(one, measured()) == operation_seconds(one, H100)


def test_a_launch_takes_what_it_took() -> None:
    assert operation_seconds(operation(num_bytes=4), measured()) == 9e-6


def test_rates_are_given_kept_or_those_of_the_catalogue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    gpu = measured()
    assert gpu.measured is not None
    smaller = replace(H100, slug=f"{H100.slug} with 24 GiB")
    assert with_rates(H100, None) == H100
    kept = default_path("h100-80gb")
    kept.parent.mkdir(parents=True)
    kept.write_text(json.dumps(gpu.measured.document))
    for one in (H100, smaller):
        found = with_rates(one, None).measured
        assert found is not None and found.source == str(kept)
    assert with_rates(H100, "catalogue").measured is None
    with pytest.raises(SpecError, match="these are rates of h100-80gb, and the GPU is t4"):
        with_rates(find_gpu("t4"), kept)


def test_a_measured_gpu_can_be_a_key_as_any_other() -> None:
    assert len({H100, measured(), measured()}) == 2


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
