"""Plans replayed with real numbers: what trains otherwise is found out, and the rest is said."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.phantom

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "programs" / "plans" / "replays.py"
TIMEOUT_S = 300


@pytest.fixture(scope="module")
def found(thin_python: Path) -> dict[str, dict[str, Any]]:
    """What came of each case; see the program."""
    done = subprocess.run(
        [str(thin_python), str(PROGRAM)], check=False, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, timeout=TIMEOUT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    cases: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return cases


@pytest.mark.parametrize(
    "case", ["checkpoint", "several", "tiles of parts", "casting", "casting, selectively"]
)
def test_a_plan_that_computes_the_same_trains_alike(
    found: dict[str, dict[str, Any]], case: str
) -> None:
    assert found[case]["is_same"], found[case]
    assert found[case]["not_done"] == {}
    assert found[case]["precision"] == "float64"
    assert found[case]["num_steps"] == 3
    assert found[case]["loss_diff"] < 1e-12
    assert found[case]["parameter_diff"] < 1e-9


def test_what_a_replayed_module_stands_for_is_counted(found: dict[str, dict[str, Any]]) -> None:
    assert found["checkpoint"]["done"] == ["checkpoint on 6 of 6 Block"]
    assert "4 modules that are like others left out" in found["checkpoint"]["reduced"]
    assert "5000 rows of embeddings made 1024" in found["checkpoint"]["reduced"]
    assert found["several"]["done"] == [
        "chunked_loss", "free_gradients", "checkpoint on 4 of 4 Block",
        "offload_activations on 4 of 4 Block", "optimizer_offload",
    ]  # fmt: skip


@pytest.mark.parametrize("case", ["tiles of blocks", "tiles of blocks, zeros"])
def test_tiles_of_a_block_with_causal_attention_are_found_out(
    found: dict[str, dict[str, Any]], case: str
) -> None:
    assert not found[case]["is_same"], found[case]


def test_a_fault_of_a_ten_thousandth_in_one_block_is_found_out(
    found: dict[str, dict[str, Any]],
) -> None:
    assert not found["a fault"]["is_same"]
    assert found["a fault"]["difference"].startswith("the loss of step 1 is ")


def test_what_rounds_on_purpose_is_not_replayed_and_the_rest_is(
    found: dict[str, dict[str, Any]],
) -> None:
    assert found["rounding"]["not_done"] == {"bf16_states": "it rounds otherwise on purpose"}
    assert found["rounding"]["done"] == ["checkpoint on 6 of 6 Block"]


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("locked", "cannot be copied"),
        ("without a kernel", "without::kernel"),
        ("too large", "GiB of host memory"),
    ],
)
def test_what_cannot_be_replayed_is_said_and_no_failure(
    found: dict[str, dict[str, Any]], case: str, why: str
) -> None:
    assert found[case]["is_same"] and found[case]["done"] == []
    assert why in found[case]["not_done"]["checkpoint"]
