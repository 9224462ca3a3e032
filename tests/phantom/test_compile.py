"""Compiled programs: the compiler does what it would do without ullage, and the report knows the
phases, the private pools, and what was assumed.

It needs Triton: an environment of `ullage env --with-triton`, or a full one.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

RunProgram = Callable[..., Any]

TRAIN = "compile/train.py"
NUM_STEPS = 6
WAYS = [
    "module",
    "blocks",
    "call",
    "method",
    "function",
    "optimizer",
    "breaks",
    "dynamic",
    "graphs",
]


@pytest.fixture(scope="module", autouse=True)
def _triton(thin_python: Path) -> None:
    find = "import importlib.util, sys; sys.exit(importlib.util.find_spec('triton') is None)"
    if subprocess.run([str(thin_python), "-I", "-c", find], check=False).returncode:
        pytest.skip("the environment has no Triton: make one with `ullage env --with-triton`")


pytestmark = pytest.mark.phantom


@pytest.mark.parametrize("way", WAYS)
def test_each_way_of_compiling_has_all_steps_with_their_phases(
    run_program: RunProgram, way: str
) -> None:
    outcome = run_program(TRAIN, way)
    assert outcome.exit_code == 0, outcome.stderr
    (device,) = outcome.document["devices"]  # the compiler's own processes take no memory
    assert [step["index"] for step in device["steps"]] == list(range(NUM_STEPS))
    for step in device["steps"]:
        assert set(step["phases"]) == {"forward", "backward", "optimizer"}
    assert device["peak_allocated_bytes"] == outcome.printed["peak_allocated_bytes"]
    assert device["at_peak"]["parameter"] > 0
    assert "global hooks" not in outcome.stderr
    assert outcome.printed["stats"]["unique_graphs"] > 0


@pytest.mark.parametrize("way", ["module", "method", "optimizer"])
def test_the_compiler_does_the_same_without_ullage(
    run_program: RunProgram, tmp_path: Path, way: str
) -> None:
    # Each compiles: neither finds the other's graphs.
    caches = [(("XDG_CACHE_HOME", str(tmp_path / name)),) for name in ("recorded", "plain")]
    recorded = run_program(TRAIN, way, env=caches[0])
    plain = run_program(TRAIN, way, env=(*caches[1], ("ULLAGE_RECORD", "0")))
    assert recorded.printed == plain.printed


def test_runs_that_find_the_graphs_of_the_first_differ_from_it_by_what_compiling_took(
    run_program: RunProgram, tmp_path: Path
) -> None:
    cache = (("XDG_CACHE_HOME", str(tmp_path)),)
    first, *later = (run_program(TRAIN, "module", env=cache, turn=turn) for turn in range(3))
    one, other = (outcome.record.events for outcome in later)
    for column in ("kind", "device", "size_bytes", "reserved_bytes"):
        assert np.array_equal(getattr(one, column), getattr(other, column)), column
    peaks = [outcome.printed["peaks"] for outcome in (first, *later)]
    assert peaks[0] == peaks[1] == peaks[2]
    assert len(one) < len(first.record.events)


def test_the_users_cache_of_choices_is_left_alone(run_program: RunProgram, tmp_path: Path) -> None:
    cache = tmp_path / "inductor"
    outcome = run_program(TRAIN, "module", env=(("TORCHINDUCTOR_CACHE_DIR", str(cache)),))
    assert outcome.exit_code == 0
    assert not cache.exists()
    (told,) = [text for text in outcome.document["warnings"] if str(cache) in text]
    assert "was not used" in told


def test_a_capture_takes_private_pools_in_each_stream_that_joins_it(
    run_program: RunProgram,
) -> None:
    found = run_program("compile/graph.py").printed
    assert found["streams"] == 2
    assert found["pools"]["private"] >= 2
    assert "private" not in found["pools_after"]


def test_a_replay_makes_unknown_what_the_graph_writes_and_nothing_else(
    run_program: RunProgram,
) -> None:
    outcome = run_program("compile/graph.py")
    assert outcome.printed["known"] == [7] * 8
    assert outcome.printed["replayed"] == [0] * 8
    assert outcome.printed["untouched"] == list(range(8))
    (place,) = [place for place in outcome.reads if place.endswith("in main")]
    assert outcome.reads[place] == ["host read, answered plausibly"]


def test_a_wait_for_the_device_in_a_capture_is_the_error_that_cuda_gives(
    run_program: RunProgram,
) -> None:
    assert "during capture" in run_program("compile/graph.py").printed["refused"]


def test_layers_made_into_graphs_keep_their_memory(run_program: RunProgram) -> None:
    peaks = run_program("compile/graph.py").printed["callables"]
    assert peaks[1] == peaks[2] > 0


def test_a_pool_of_the_programs_own_is_apart_and_goes(run_program: RunProgram) -> None:
    found = run_program("compile/pool.py").printed
    common, own = "0.0", found["pool"]
    assert own != common
    assert found["made"] == {common: 32 << 20, own: 64 << 20}
    assert found["reused"][own] == 64 << 20  # what is free in it is not for others
    assert own not in found["after"]


@pytest.mark.parametrize(("gpu", "arch"), [("h100-80gb", 90), ("t4", 75)])
def test_triton_compiles_for_the_phantoms_architecture(
    run_program: RunProgram, gpu: str, arch: int
) -> None:
    found = run_program("compile/kernels.py", gpu=gpu).printed
    assert found["arch"] == arch == 10 * found["capability"][0] + found["capability"][1]
    assert found["block"] == 256  # all take the same time: the first is chosen
    assert found["bytes"] == 4 * found["numel"]


def test_a_kernel_of_small_integers_is_followed(run_program: RunProgram) -> None:
    outcome = run_program("compile/kernels.py")
    assert outcome.printed["counts"] == [2 * number for number in range(8)]
    assert not any(
        "kernels.py" in place and "read" in what for place, (what, *_) in outcome.reads.items()
    )


def test_attention_by_rule_runs(run_program: RunProgram) -> None:
    assert run_program("compile/flex.py").printed["gradient"] == [2, 4, 512, 64]


def test_a_product_chosen_by_timing_is_in_the_basis(run_program: RunProgram) -> None:
    outcome = run_program("compile/tuned.py")
    assert outcome.printed["shape"] == [16, 64]
    made = outcome.document["basis"]["allocator"]["assumptions"]
    assert any(one["what"].startswith("kernel chosen by timing") for one in made)


def test_compiled_generation_has_its_graphs_in_private_pools(run_program: RunProgram) -> None:
    outcome = run_program("compile/generate.py")
    assert outcome.printed["shape"] == [2, 20]
    assert outcome.printed["private"] > 0
