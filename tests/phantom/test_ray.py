"""A search on a Ray cluster: a real one, of this machine alone and on its loopback device."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.phantom,
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None,
        reason="ray is not installed: pip install 'ullage[ray]'",
    ),
]

PROGRAMS = Path(__file__).parents[1] / "programs" / "plans"
TIMEOUT_S = 400
NOT_COMPARED = {"wall_s"}


@pytest.fixture(scope="module")
def found(thin_python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What programs/plans/search_on_ray.py has to say."""
    words = [str(thin_python), str(tmp_path_factory.mktemp("ray")), "loops.py", "plain", "cuda"]
    done = subprocess.run(
        [sys.executable, "search_on_ray.py", *words],
        cwd=PROGRAMS, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


def test_a_search_on_a_cluster_finds_what_one_without_finds(found: dict[str, Any]) -> None:
    here, there = found["here"], found["there"]
    assert here["verdict"] == "fits_under_plan"
    for one in (here, there):
        assert one["replayed"].pop("seconds") > 0
    assert {key for key in here if here[key] != there[key]} <= NOT_COMPARED
    assert there["num_runs"] > 4


def test_a_cluster_of_this_machine_does_not_listen_beyond_it(found: dict[str, Any]) -> None:
    assert found["nodes"] == ["127.0.0.1"]


def test_what_ran_on_a_lost_node_is_run_once_more(found: dict[str, Any]) -> None:
    once, twice = found["lost"]
    assert once == ["fits", 2]
    assert twice[0].startswith("EnvironmentProblem: node 127.0.0.1 of the Ray cluster was lost")
    assert twice[1] == 2


def test_a_node_with_another_torch_is_refused(found: dict[str, Any]) -> None:
    assert found["another_torch"].startswith("EnvironmentProblem: node 127.0.0.1: its ")
    assert "not the same build of 2.0.0" in found["another_torch"]


def test_a_cluster_that_does_not_answer_is_told(found: dict[str, Any]) -> None:
    assert found["no_cluster"].startswith(
        "EnvironmentProblem: the Ray cluster '127.0.0.1:1' cannot be reached"
    )
