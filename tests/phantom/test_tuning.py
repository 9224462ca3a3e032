"""A run with a cold cache of Inductor's states what a warm one reserves, and that is what it does.

It needs Triton: an environment of `ullage env --with-triton`, or a full one.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ullage.ground.units import MIB

RunProgram = Callable[..., Any]
pytestmark = pytest.mark.phantom
FLUSH_BYTES = 50 * MIB  # the L2 cache of an H100
SMALL_SEGMENT_BYTES = 2 * MIB  # of the small tensors that Inductor's passes over a new graph make


@pytest.fixture(scope="module", autouse=True)
def _triton(thin_python: Path) -> None:
    find = (
        "import importlib.util, sys; sys.exit(importlib.util.find_spec('triton.language') is None)"
    )
    if subprocess.run([str(thin_python), "-I", "-c", find], check=False).returncode:
        pytest.skip("the environment has no Triton: make one with `ullage env --with-triton`")


def test_the_lower_end_of_a_cold_run_is_what_a_warm_one_reserves(
    run_program: RunProgram, tmp_path: Path
) -> None:
    no_graphs = (("XDG_CACHE_HOME", str(tmp_path)),)
    outcome = run_program("compile/timed_twice.py", gpu="h100-80gb", env=no_graphs, timeout_s=400)
    devices = {bool(device["num_timing_blocks"]): device for device in outcome.document["devices"]}
    cold, warm = devices[True], devices[False]
    printed = [json.loads(line) for line in outcome.stderr.splitlines() if line.startswith("{")]
    assert [line["reserved"] for line in printed] == [
        device["peak_reserved_bytes"] for device in (cold, warm)
    ]
    assert cold["peak_reserved_high_bytes"] == cold["peak_reserved_bytes"]
    assert cold["peak_reserved_low_bytes"] == warm["peak_reserved_bytes"]
    assert (
        cold["peak_reserved_bytes"] - warm["peak_reserved_bytes"]
        == FLUSH_BYTES + SMALL_SEGMENT_BYTES
    )
    assert warm["peak_reserved_low_bytes"] == warm["peak_reserved_high_bytes"]
