"""DeepSpeed's ZeRO-Infinity: intervals by its rules, and its ZeRO-3 on the phantom within them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.accuracy.estimate.compare import make_recipe

from ullage.facts.families.config import Config
from ullage.facts.gpus.catalog import find_gpu
from ullage.ground.errors import SpecError
from ullage.players.eager.training.estimate import TrainingEstimate, estimate_training
from ullage.players.eager.training.infinity import buffers_on_device, host_memory
from ullage.players.eager.training.layout import Layout

FOUND: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("deepspeed_vectors.json").read_text(encoding="utf-8")
)
GB = 10**9


def estimate(name: str, *, nvme: bool = True) -> TrainingEstimate:
    row = FOUND[name]
    recipe = make_recipe(row["recipe"])
    recipe = replace(recipe, layout=replace(recipe.layout, nvme=nvme))
    return estimate_training(Config(name, row["config"]), recipe, find_gpu(row["gpu"]))


def allocated(answer: TrainingEstimate) -> tuple[int, int]:
    """The ends of what is allocated."""
    terms = [term for term in answer.terms if term.name not in ("cached blocks", "context")]
    return sum(term.low_bytes for term in terms), sum(term.high_bytes for term in terms)


@pytest.mark.parametrize("name", FOUND)
def test_the_interval_holds_what_the_phantom_allocated(name: str) -> None:
    low, high = allocated(estimate(name))
    assert low <= FOUND[name]["phantom"]["peak_allocated_bytes"] <= high


@pytest.mark.parametrize("name", FOUND)
def test_without_its_buffers_the_estimate_would_be_too_low(name: str) -> None:
    _, high = allocated(estimate(name, nvme=False))
    assert high < FOUND[name]["phantom"]["peak_allocated_bytes"]


def test_buffers_grow_with_the_model_up_to_what_may_stay_gathered() -> None:
    assert buffers_on_device(10**8).likely == 1 * GB + 2 * 10**8
    assert buffers_on_device(10**10) == buffers_on_device(10**12)


@pytest.mark.parametrize("num_elements", [10**8, 10**9, 10**10])
def test_what_is_not_in_memory_is_on_disk(num_elements: int) -> None:
    memory, disk = host_memory(num_elements)
    assert memory.low < memory.likely < memory.high
    staying = min(num_elements, 10**9)
    assert disk == 14 * num_elements - 2 * staying
    assert host_memory(2 * num_elements).disk_bytes > disk


def test_an_estimate_tells_host_memory_and_disks() -> None:
    answer = estimate(next(iter(FOUND)))
    assert answer.host == host_memory(answer.num_rank_parameters)
    assert any("ZeRO-Infinity" in line for line in answer.assumptions)


def test_nvme_comes_after_host_memory() -> None:
    with pytest.raises(SpecError, match="nvme: found without offload"):
        Layout(data=2, sharding="fsdp", nvme=True)
