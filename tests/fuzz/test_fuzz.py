"""Some seconds of fuzzing at every change; `make fuzz` takes longer (docs/results/tests.md)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.fuzz.run import TARGETS

SECONDS = 5
RUN = Path(__file__).with_name("run.py")


@pytest.mark.fuzz
@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_nothing_is_found_in_some_seconds(target: str, tmp_path: Path) -> None:
    options = ("--only", target, "--seconds", str(SECONDS), "--folder", str(tmp_path))
    done = subprocess.run(
        [sys.executable, str(RUN), *options], capture_output=True, text=True, check=False
    )
    if done.returncode == 2:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing found" in done.stdout
    num_inputs = int(done.stdout.split()[1])
    assert num_inputs > 1000, "it has not really run"
