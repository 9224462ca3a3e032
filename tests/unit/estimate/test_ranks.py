"""Jobs on several GPUs, against one rank on the phantom (benchmarks/accuracy/estimate)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from benchmarks.accuracy.estimate.compare import Row, compare, make_recipe
from tests.rows import each

from ullage.facts.families.config import Config
from ullage.facts.gpus.catalog import find_gpu
from ullage.players.eager.training.estimate import estimate_training

VECTORS: dict[str, dict[str, Any]] = {
    name: vector
    for name, vector in json.loads(
        (Path(__file__).parent / "phantom_vectors.json").read_text(encoding="utf-8")
    ).items()
    if vector["family"] == "ranks"
}
# DDP has one bucket of all gradients in its first step, and several in its place from then on; what
# the first one leaves cached is where the estimate asks for a segment more.
REBUCKETED = "DDP"
every_case = each("name", VECTORS)


@cache
def row_of(name: str) -> Row:
    return compare(name, VECTORS[name])


@pytest.mark.parametrize("field", ["data", "tensor", "sequence", "context", "expert", "pipeline"])
def test_each_way_to_divide_is_among_the_cases(field: str) -> None:
    layouts = [make_recipe(vector["recipe"]).layout for vector in VECTORS.values()]
    assert sum(getattr(layout, field) > 1 - (field == "sequence") for layout in layouts) >= 2


@every_case
def test_parameters_gradients_and_states_are_exact(name: str) -> None:
    assert row_of(name).is_exact


@every_case
def test_activations_and_peak_are_within_3_per_cent(name: str) -> None:
    assert abs(row_of(name).activation_error) < 0.03
    assert abs(row_of(name).peak_error) < 0.03


def test_the_median_error_is_below_a_fifth_of_a_per_cent() -> None:
    rows = [row_of(name) for name in VECTORS]
    assert median(abs(row.activation_error) for row in rows) < 0.002
    assert median(abs(row.peak_error) for row in rows) < 0.002


@every_case
def test_what_is_reserved_is_covered_and_near(name: str) -> None:
    vector = VECTORS[name]
    estimate = estimate_training(
        Config(name, vector["config"]), make_recipe(vector["recipe"]), find_gpu(vector["gpu"])
    )
    reserved = vector["phantom"]["peak_reserved_bytes"]
    assert estimate.reserved_bytes == pytest.approx(
        reserved, rel=0.13 if REBUCKETED in name else 0.04
    )
    assert row_of(name).is_covered
