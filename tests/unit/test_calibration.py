"""The rates that follow from measurements of a GPU."""

from __future__ import annotations

from typing import Any

import pytest

from ullage.api.calibrate import read_measurements
from ullage.errors import DeviceError, SpecError
from ullage.gpus.catalog import find_by_device, find_gpu
from ullage.gpus.peaks import flops_per_s, link_bytes_per_s, peer_bytes_per_s
from ullage.gpus.rates import Rates
from ullage.report.terminal import render
from ullage.report.text.calibrate import print_rates

H100 = find_gpu("h100-80gb")
SHARES = {
    "matmul": 0.7, "attention": 0.5, "memory": 0.9, "to_device": 0.8, "to_host": 0.75,
    "peers": 0.6,
}  # fmt: skip


def shown(rates: Rates) -> str:
    return render(lambda console: print_rates(rates, console), 80)


def measurements(num_gpus: int = 2) -> dict[str, Any]:
    """What measure_rates.py would write of an H100 that comes to these shares of each rate."""
    stated = {
        **{("matmul", of): flops_per_s(H100, of) for of in ("bfloat16", "float16", "tf32", "fp32")},
        **{("attention", of): flops_per_s(H100, "bfloat16") for of in ("forward", "backward")},
        **{("memory", of): H100.bandwidth_bytes_per_s for of in ("copy", "add")},
        ("to_device", ""): link_bytes_per_s(H100),
        ("to_host", ""): link_bytes_per_s(H100),
    }
    if num_gpus > 1:
        stated |= {
            ("peers", of): peer_bytes_per_s(H100, num_gpus) for of in ("all_reduce", "all_gather")
        }
    samples: list[list[Any]] = [
        [kind, of, seconds * SHARES[kind] * rate, seconds + 2e-6]
        for (kind, of), rate in stated.items()
        for seconds in (1e-4, 1e-3, 1e-2)
    ]
    samples += [["launch", "", 1.0, seconds] for seconds in (9e-6, 6e-6, 7e-6)]
    skipped = {} if num_gpus > 1 else {"peers": "there is one GPU only"}
    return {
        "device": H100.name, "total_bytes": H100.total_bytes, "num_gpus": num_gpus,
        "driver": "580.1", "torch": "2.11.0", "samples": samples, "skipped": skipped,
    }  # fmt: skip


def test_each_kind_of_work_comes_to_its_share_of_the_catalogues_rate() -> None:
    rates = read_measurements(measurements(), "2026-11-22")
    assert rates.gpu == "h100-80gb"
    for speed in rates.matmul.values():
        assert speed.frac == pytest.approx(0.7)
        assert speed.start_s == pytest.approx(2e-6)
    assert rates.attention["backward"].frac == pytest.approx(0.5)
    for name in ("memory", "to_device", "to_host", "peers"):
        assert getattr(rates, name).frac == pytest.approx(SHARES[name]), name
    assert rates.launch_s == 7e-6


def test_one_gpu_tells_nothing_of_collectives() -> None:
    rates = read_measurements(measurements(1))
    assert rates.peers is None
    assert "not measured: peers: there is one GPU only" in shown(rates)


def test_what_was_measured_is_shown() -> None:
    text = shown(read_measurements(measurements(), "2026-11-22"))
    assert "NVIDIA H100 80GB HBM3 (h100-80gb)" in text
    assert "matrix products, bfloat16" in text and "70.0 %" in text
    assert "to other GPUs" in text and "60.0 %" in text


def test_what_times_hang_on_has_to_be_measured() -> None:
    found = measurements()
    found["samples"] = [one for one in found["samples"] if one[:2] != ["matmul", "tf32"]]
    found["skipped"]["matmul tf32"] = "CUBLAS_STATUS_NOT_SUPPORTED"
    with pytest.raises(DeviceError, match=r"tf32 could not be measured here .*NOT_SUPPORTED"):
        read_measurements(found)


def test_a_gpu_that_the_catalogue_does_not_have_is_refused() -> None:
    with pytest.raises(SpecError, match="the catalogue has no 'NVIDIA X1'"):
        find_by_device("NVIDIA X1", 0)


def test_of_gpus_of_one_name_the_memory_decides() -> None:
    gpu = find_gpu("a100-80gb")
    assert find_by_device(gpu.name, gpu.total_bytes).name == gpu.name
