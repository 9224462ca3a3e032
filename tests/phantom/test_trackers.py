"""What a recording tells the program's own tracker, on the bare phantom."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.phantom.bare_gpu import bare_environment
from tests.phantom.conftest import MAIN, execute, find_program

import ullage

pytestmark = [pytest.mark.phantom, pytest.mark.fresh]


def told_by(python: Path, directory: Path, command: list[str]) -> dict[str, Any]:
    """What the program's run was told, and the peaks that the program has seen itself."""
    variables = dict(bare_environment(python, XDG_RUNTIME_DIR=str(directory)))
    code, stdout, stderr = execute(command, directory, variables)
    assert code == 0, stderr
    (line,) = [line for line in stdout.splitlines() if line.startswith('{"rows"')]
    document: dict[str, Any] = json.loads(line)
    return document


def check(document: dict[str, Any]) -> None:
    """The first step is told at once, the others at the end, with the highest of their peaks."""
    peaks = document["peaks"][:4]
    ((first, values), (last, others)) = document["rows"]
    assert (first, last) == (1, 4)
    assert others["ullage/allocated_peak_bytes"] == max(peaks[1:])
    assert values["ullage/allocated_peak_bytes"] <= others["ullage/allocated_peak_bytes"]
    assert others["ullage/reserved_peak_bytes"] >= others["ullage/allocated_peak_bytes"]
    assert 70 * 2**30 < others["ullage/headroom_bytes"] < 80 * 2**30
    assert others["ullage/step_seconds"] > 0
    assert (others["ullage/alloc_retries"], others["ullage/ooms"]) == (0, 0)


@pytest.mark.slow
def test_a_recorded_program_is_tracked_by_its_active_run(thin_python: Path, tmp_path: Path) -> None:
    command = [
        sys.executable, "-c", MAIN, "record", "--quiet", "--track", "auto",
        "--python", str(thin_python), "--snapshot", str(tmp_path / "run.pickle"),
        "--", find_program("trackers/tracked.py"), "run",
    ]  # fmt: skip
    check(told_by(thin_python, tmp_path, command))


@pytest.mark.slow
def test_an_object_of_the_programs_is_told(thin_python: Path, tmp_path: Path) -> None:
    source = str(Path(ullage.__file__).parents[1])
    command = [str(thin_python), find_program("trackers/tracked.py"), source]
    document = told_by(thin_python, tmp_path, command)
    check(document)
    assert len(document["peaks"]) == 5, "the last was after the recording's end"
