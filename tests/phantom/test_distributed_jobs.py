"""Jobs of 2, 8 and 64 ranks, as tests/programs/distributed/jobs.toml lists them: ranks that are
symmetric have equal numbers, and stages of a pipeline differ by what can be worked out by hand.
"""

from __future__ import annotations

import json
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest

import ullage

pytestmark = pytest.mark.phantom

PROGRAMS = Path(__file__).parents[1] / "programs" / "distributed"
JOBS = tomllib.loads((PROGRAMS / "jobs.toml").read_text(encoding="utf-8"))["job"]
FIGURES = (
    "peak_requested_bytes", "peak_allocated_bytes", "peak_reserved_bytes", "num_allocs",
    "num_segments", "at_peak", "steps",
)  # fmt: skip


def play(run: str, ranks: list[int], world_size: int, python: Path) -> dict[int, dict[str, Any]]:
    """What was found of each rank."""
    name, *words = shlex.split(run)
    failures: list[str] = []
    found = ullage.run_ranks(
        [str(PROGRAMS / name), *words], ranks=ranks, world_size=world_size, python=python,
        on_failure=failures.append,
    )  # fmt: skip
    assert found.verdict.value == "fits", failures
    return {device["rank"]: device for device in found.document["devices"]}


def cases() -> list[Any]:
    """Each job of each size."""
    return [
        pytest.param(
            job["run"], int(size), alike, id=f"{job['run']}, {size}",
            marks=pytest.mark.nightly if int(size) in job["nightly"] else (),
        )
        for job in JOBS for size, alike in job["ranks"].items()
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("run", "world_size", "alike"), cases())
def test_symmetric_ranks_have_equal_numbers_and_others_have_not(
    run: str, world_size: int, alike: list[list[int]], thin_python: Path
) -> None:
    devices = play(run, [rank for ranks in alike for rank in ranks], world_size, thin_python)
    for device in devices.values():
        assert len(device["steps"]) == 3
    for ranks in alike:
        first = {name: devices[ranks[0]][name] for name in FIGURES}
        for rank in ranks[1:]:
            assert {name: devices[rank][name] for name in FIGURES} == first, rank
    kinds = {json.dumps([devices[ranks[0]][name] for name in FIGURES]) for ranks in alike}
    assert len(kinds) == len(alike)


@pytest.mark.slow
def test_stages_differ_by_what_can_be_worked_out(thin_python: Path) -> None:
    """Under 1F1B stage s of P keeps P - s microbatches, so that the second keeps one more than the
    third, and both are alike otherwise. The first has the embedding, the last the head.
    """
    devices = play("pipeline.py 4 1F1B", [0, 1, 2, 3], 4, thin_python)
    rows, length, width, heads, vocabulary = 2, 128, 256, 8, 1024  # rows of a microbatch
    hidden = rows * length * width * 4
    # The normed input, query, key, value, their mixture, the sum, that normed, 4 up, 4 activated,
    # and the output; the mean and deviation of two norms; the attention's logsumexp, its random
    # seed and offset.
    kept = 16 * hidden + 2 * 2 * rows * length * 4 + rows * heads * length * 4 + 2 * 8
    second, third = (devices[rank]["peak_requested_bytes"] for rank in (1, 2))
    assert second - third == 2 * kept, "two blocks a stage"
    attention, norms = 4 * width**2, 2 * 2 * width
    up_and_down = 2 * 4 * width**2 + 4 * width + width
    blocks = 2 * 4 * (attention + norms + up_and_down)
    table = 4 * vocabulary * width
    held = [devices[rank]["at_peak"]["parameter"] for rank in range(4)]
    assert held == [blocks + table, blocks, blocks, blocks + table]
