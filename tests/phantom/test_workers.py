"""Runs on the workers of an executor, each made by the lines of the guide."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.phantom, pytest.mark.slow]

PROGRAMS = Path(__file__).parents[1] / "programs" / "plans"
GUIDE = Path(__file__).parents[2] / "docs" / "reference" / "fit.md"
# Of the lines of each library: what names somebody's cluster, and two workers here in its place.
HERE = {
    "ray": ('ray.init("auto")', 'ray.init("local", num_cpus=2, include_dashboard=False)'),
    "dask": ('Client("scheduler.example:8786")', "Client(n_workers=2, threads_per_worker=1)"),
    "submitit": ('"log"', '"log", cluster="local"'),
}
PROCESSES = "import concurrent.futures as f\nmake = lambda: f.ProcessPoolExecutor(2)\n"
PACKAGES = {"ray": "ray", "dask": "distributed", "submitit": "submitit"}
TIMEOUT_S = 400
NOT_COMPARED = {"wall_s"}


def write_pool(library: str, folder: Path) -> Path:
    """The guide's lines that make an executor, with workers of this machine."""
    path = folder / "pool.py"
    if library == "processes":
        path.write_text(PROCESSES)
        return path
    if importlib.util.find_spec(PACKAGES[library]) is None:
        pytest.skip(f"{PACKAGES[library]} is not installed")
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    (lines,) = [block for block in blocks if f" {PACKAGES[library]}" in block]
    theirs, ours = HERE[library]
    assert lines.count(theirs) == 1
    path.write_text(lines.replace(theirs, ours))
    return path


def play(program: str, *words: str) -> str:
    """The document that a program prints; Ray's log may follow it."""
    done = subprocess.run(
        [sys.executable, program, *words],
        cwd=PROGRAMS, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith(("{", "["))][-1]


@pytest.fixture(scope="module", params=["processes", "ray"])
def found(
    request: pytest.FixtureRequest, thin_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What programs/plans/search_on_workers.py has to say."""
    folder = tmp_path_factory.mktemp(request.param)
    pool = write_pool(request.param, folder)
    words = (str(pool), str(thin_python), str(folder), "loops.py", "plain", "cuda")
    return {"library": request.param, **json.loads(play("search_on_workers.py", *words))}


def test_a_search_on_workers_finds_what_one_without_finds(found: dict[str, Any]) -> None:
    here, there = found["here"], found["there"]
    assert here["verdict"] == "fits_under_plan"
    for one in (here, there):
        assert one["replayed"].pop("seconds") > 0
    assert {key for key in here if here[key] != there[key]} <= NOT_COMPARED
    assert there["num_runs"] > 4


def test_a_run_whose_worker_is_lost_is_an_error(found: dict[str, Any]) -> None:
    why, num_begun = found["lost"]
    assert why.startswith("EnvironmentProblem: a run did not come to its end on ")
    # Ray itself begins it again on another worker.
    assert num_begun == (2 if found["library"] == "ray" else 1)


def test_a_worker_with_another_torch_is_refused(found: dict[str, Any]) -> None:
    assert found["another_torch"].startswith("EnvironmentProblem: worker ")
    assert "not the same build of 2.0.0" in found["another_torch"]


@pytest.mark.nightly
@pytest.mark.parametrize("library", ["dask", "submitit"])
def test_the_guides_lines_make_an_executor_that_runs(
    library: str, thin_python: Path, tmp_path: Path
) -> None:
    pool = write_pool(library, tmp_path)
    said = play("run_on_workers.py", str(pool), str(thin_python), "loops.py", "plain", "cuda")
    assert json.loads(said) == ["fits", "fits"]
