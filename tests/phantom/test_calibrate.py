"""The program that measures a GPU: its whole way on the CPU, and where it refuses.

On a GPU itself it has not been run yet.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ullage.gpus.rates import Sample

pytestmark = [pytest.mark.phantom, pytest.mark.slow]

PROGRAM = Path(__file__).parents[2] / "src" / "ullage" / "programs" / "measure_rates.py"
MAIN = "from ullage.cli.main import main; main()"
KINDS = {
    ("matmul", "bfloat16"): 3, ("matmul", "float16"): 3, ("matmul", "tf32"): 3,
    ("matmul", "fp32"): 3, ("attention", "forward"): 2, ("attention", "backward"): 2,
    ("memory", "copy"): 3, ("memory", "add"): 3, ("to_device", ""): 3, ("to_host", ""): 3,
    ("launch", ""): 7, ("peers", "all_reduce"): 3, ("peers", "all_gather"): 3,
}  # fmt: skip


@pytest.fixture(scope="module")
def measured(thin_python: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What it writes where the CPU stands in for a GPU."""
    found = tmp_path_factory.mktemp("rates") / "found.json"
    done = subprocess.run(
        [str(thin_python), str(PROGRAM), "cpu", str(found)],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(found.read_text())
    return document


def test_everything_is_measured_in_several_sizes(measured: dict[str, Any]) -> None:
    counts: dict[tuple[str, str], int] = {}
    for kind, of, work, seconds in measured["samples"]:
        assert work > 0 and seconds > 0
        counts[kind, of] = counts.get((kind, of), 0) + 1
    assert {key: counts.get(key) for key in KINDS} == KINDS
    assert set(measured["skipped"]) <= {"matmul float8_e4m3fn"}


def test_what_is_measured_tells_of_work_and_time(measured: dict[str, Any]) -> None:
    """A rate is not asked for: beside other work larger copies may take no longer."""
    copies = [Sample(*one[2:]) for one in measured["samples"] if one[:2] == ["memory", "add"]]
    assert len({one.work for one in copies}) > 1
    assert all(one.work > 0 and one.seconds > 0 for one in copies)


def test_the_same_is_measured_by_what_a_gpu_is_asked(thin_python: Path, tmp_path: Path) -> None:
    """On the phantom, so that every call of CUDA is made; what comes out means nothing."""
    found = tmp_path / "found.json"
    program = PROGRAM.parents[3] / "tests" / "programs" / "measure_rates_anyhow.py"
    done = subprocess.run(
        [
            sys.executable, "-c", MAIN, "run", "--gpu", "h100-80gb", "--python", str(thin_python),
            "--", str(program), str(PROGRAM), str(found),
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(found.read_text())
    assert document["device"] == "NVIDIA H100 80GB HBM3"
    assert document["skipped"] == {"peers": "there is one GPU only"}
    kinds = {(kind, of) for kind, of, _work, _seconds in document["samples"]}
    alone = {key for key in KINDS if key[0] != "peers"}
    assert kinds == alone | {("matmul", "float8_e4m3fn")}


def calibrate(
    thin_python: Path, directory: Path, variables: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """`ullage calibrate` with the variables."""
    return subprocess.run(
        [sys.executable, "-c", MAIN, "calibrate", "--python", str(thin_python)],
        env={**os.environ, "XDG_CONFIG_HOME": str(directory), **variables},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_without_a_gpu_nothing_is_measured(thin_python: Path, tmp_path: Path) -> None:
    # CUDA_VISIBLE_DEVICES: on a machine with a GPU it is hidden.
    done = calibrate(thin_python, tmp_path, {"CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 2
    assert "the GPU could not be measured: torch 2" in done.stderr
    assert "finds no GPU here" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_phantom_is_not_measured(thin_python: Path, tmp_path: Path) -> None:
    done = calibrate(thin_python, tmp_path, {"ULLAGE_PHANTOM": "1"})
    assert done.returncode == 2
    assert "this GPU is a phantom" in done.stderr and "times on it mean nothing" in done.stderr


def test_the_measuring_program_itself_refuses_a_phantom(thin_python: Path, tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    done = subprocess.run(
        [
            sys.executable, "-c", MAIN, "run", "--python", str(thin_python), "--",
            str(PROGRAM), "cuda", str(found),
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 3
    assert "this GPU is a phantom" in done.stderr
    assert not found.exists()
