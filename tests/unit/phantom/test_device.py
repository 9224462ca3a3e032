"""A device is data: the catalogue's figures, with what the user said instead."""

from __future__ import annotations

import pytest
from tests.rows import each

from ullage.facts.gpus.catalog import find_gpu, load_catalog
from ullage.ground.errors import SpecError
from ullage.players.phantom.device import choose_device


def fields_of(text: str) -> dict[str, str]:
    return dict(field.split("=", 1) for field in text.split(";"))


def test_without_options_it_is_an_h100_that_never_runs_out() -> None:
    device = choose_device()
    fields = fields_of(device.environment_text())
    assert device.is_unlimited and fields["unlimited"] == "1"
    assert fields["name"] == "NVIDIA H100 80GB HBM3"
    assert fields["capability"] == "9.0"
    assert fields["total_bytes"] == "85028896768"
    assert fields["multiprocessors"] == "132"


@each("slug", [gpu.slug for gpu in load_catalog()])
def test_every_catalogued_gpu_becomes_a_whole_device(slug: str) -> None:
    device = choose_device(slug)
    fields = fields_of(device.environment_text())
    assert not device.is_unlimited and fields["unlimited"] == "0"
    assert all(fields.values()) and "None" not in fields.values()
    assert int(fields["total_bytes"]) == find_gpu(slug).total_bytes


def test_memory_and_capability_replace_the_gpus_own() -> None:
    device = choose_device("rtx-4090", memory="12GiB", capability="9.0")
    fields = fields_of(device.environment_text())
    assert fields["total_bytes"] == str(12 << 30)
    assert fields["capability"] == "9.0"
    assert fields["multiprocessors"] == "128"
    assert device.gpu.total_low_bytes == device.gpu.total_high_bytes == 12 << 30


def test_the_model_is_that_of_the_catalogue_whatever_is_replaced() -> None:
    device = choose_device("rtx-4090", memory="12GiB", capability="8.9")
    assert device.gpu.slug == "rtx-4090 with 12.0 GiB as 8.9"
    assert device.model == "rtx-4090"


def test_memory_alone_is_a_limit() -> None:
    assert not choose_device(memory="24GiB").is_unlimited
    assert not choose_device(capability="8.0").is_unlimited


@pytest.mark.parametrize("capability", ["9", "90", "sm_90", "9.0a", "3.5", "", "9.10"])
def test_a_malformed_capability_is_refused_with_an_example(capability: str) -> None:
    with pytest.raises(SpecError, match=r"such as 8\.9 or 9\.0"):
        choose_device(capability=capability)


@pytest.mark.parametrize("memory", ["80G", "lots", "1MiB", 0])
def test_an_impossible_memory_is_refused(memory: str | int) -> None:
    with pytest.raises(SpecError):
        choose_device(memory=memory)


def test_what_nobody_states_of_a_gpu_is_left_to_the_library() -> None:
    fields = fields_of(choose_device("b300").environment_text())
    assert not fields.keys() & {"l2_bytes", "bus_bits", "clock_khz", "memory_clock_khz"}
    assert fields["multiprocessors"] == "148"


@pytest.mark.parametrize("gpu", ["mi300x", "Apple M4 Max", "strix-halo"])
def test_a_gpu_without_cuda_is_refused_in_one_sentence(gpu: str) -> None:
    with pytest.raises(SpecError, match="the phantom stands in for CUDA") as refusal:
        choose_device(gpu)
    assert str(refusal.value).count(". ") == 0


def test_an_unknown_gpu_is_refused() -> None:
    with pytest.raises(SpecError, match="h100"):
        choose_device("h1000")


def test_a_budget_is_part_of_the_device_and_the_verdict_is_about_it() -> None:
    device = choose_device("rtx-4090", budget="12GiB")
    fields = fields_of(device.environment_text())
    assert fields["budget_bytes"] == str(12 << 30)
    assert int(fields["total_bytes"]) == find_gpu("rtx-4090").total_bytes
    assert (device.usable.slug, device.usable.total_bytes) == ("rtx-4090 within 12.0 GiB", 12 << 30)
    assert not choose_device(budget="12GiB").is_unlimited, "of an H100"


@pytest.mark.parametrize(("budget", "why"), [("30GiB", "is more than"), ("1MiB", "context takes")])
def test_a_budget_that_a_device_cannot_have_is_refused(budget: str, why: str) -> None:
    with pytest.raises(SpecError, match=why):
        choose_device("rtx-4090", budget=budget)
