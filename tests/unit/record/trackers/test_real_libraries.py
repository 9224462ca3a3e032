"""The trackers' libraries themselves, offline: what their own files have after some steps, beside
the metrics of the program's own.

ULLAGE_TEST_TRACKERS_PYTHON is an interpreter that has some of mlflow-skinny, wandb, tensorboard
with tensorboardX, neptune-scale and comet-ml; else this one is asked. What is not installed is
skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ullage

pytestmark = pytest.mark.nightly
PYTHON = os.environ.get("ULLAGE_TEST_TRACKERS_PYTHON", sys.executable)
PROGRAM = Path(__file__).parents[3] / "programs/trackers/real.py"
PACKAGES = {
    "mlflow": "mlflow", "wandb": "wandb", "tensorboard": "tensorboardX",
    "neptune": "neptune_scale", "comet": "comet_ml",
}  # fmt: skip
GIB = 2**30
LOSSES = [[102, 0.5], [104, 0.25], [106, pytest.approx(1 / 6)]]


def train(tracker: str, directory: Path) -> dict[str, Any]:
    """What the library's files have."""
    command = [PYTHON, "-c", f"import {PACKAGES[tracker]}"]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip(f"{PACKAGES[tracker]} is not installed in {PYTHON}")
    source = str(Path(ullage.__file__).parents[1])
    done = subprocess.run(
        [PYTHON, str(PROGRAM), source, tracker, str(directory)],
        cwd=directory, env={**os.environ, "HOME": str(directory), "WANDB_SILENT": "true"},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert (document["problems"], document["left"]) == ([], [])
    values: dict[str, Any] = document["values"]
    return values


@pytest.mark.parametrize(
    ("tracker", "name", "gib"),
    [
        ("mlflow", "system/ullage_{}_megabytes", GIB / 1e6),
        ("tensorboard", "ullage/{}_gib", 1.0),
        ("neptune", "ullage/{}_bytes", GIB),
    ],
)
def test_every_step_is_in_the_run(tmp_path: Path, tracker: str, name: str, gib: float) -> None:
    values = train(tracker, tmp_path)
    peaks = [5, 4, 5, 4, 5, 4]
    expected = [[step, pytest.approx(peak * gib)] for step, peak in enumerate(peaks, 1)]
    assert values[name.format("allocated_peak")] == expected
    assert values[name.format("headroom")][0][1] == pytest.approx(73 * gib)
    assert values["loss"] == LOSSES, "the program's own are as they would be"
    assert len(values) == 8


def test_comet_shows_them_at_the_programs_steps(tmp_path: Path) -> None:
    values = train("comet", tmp_path)
    assert [step for step, _ in values["ullage_step"]] == [None, None, 102, 102, 104, 104]
    assert [value for _, value in values["ullage_step"]] == [1, 2, 3, 4, 5, 6]
    assert values["ullage_allocated_peak_bytes"][0][1] == 5 * GIB
    assert values["loss"] == LOSSES


def test_wandb_loses_none_of_the_programs_rows(tmp_path: Path) -> None:
    values = train("wandb", tmp_path)
    assert [[row["_step"], row["loss"]] for row in values["rows"]] == LOSSES
    rows = [row for row in values["rows"] if "ullage/step" in row]
    assert [row["ullage/step"] for row in rows][-1] == 6
    # Which row a report joins depends on how fast wandb's own process is.
    assert max(row["ullage/allocated_peak_bytes"] for row in rows) == 5 * GIB
    assert values["defined"] == [
        ["ullage/step", ""],
        ["ullage/*", "ullage/step"],
        ["ullage/allocated_peak_bytes", "ullage/step"],
        ["ullage/reserved_peak_bytes", "ullage/step"],
    ]
