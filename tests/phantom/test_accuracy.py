"""The accuracy benchmark on the phantom: two recordings agree, and one changed event is found."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from benchmarks.accuracy import compare
from benchmarks.accuracy.phantom import run_workload
from benchmarks.accuracy.record import collect, part

pytestmark = pytest.mark.phantom
NAME = "mlp_fp32_adam"


def record(folder: Path, python: Path) -> Path:
    parts = folder / "parts"
    parts.mkdir(parents=True)
    args = argparse.Namespace(gpu="h100-80gb", python=python, timeout=120)
    result = run_workload(NAME, parts, args)
    assert result.error is None
    collect(parts, folder)
    return folder


def compared(a: Path, b: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, compare.__file__, str(a), str(b)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_changed_event_is_found(tmp_path: Path, thin_python: Path) -> None:
    truth, again = (record(tmp_path / name, thin_python) for name in ("truth", "again"))
    first, second = part(NAME, truth / "parts"), part(NAME, again / "parts")
    assert first and second and first["events_sha256"] == second["events_sha256"]
    assert first["nvml_used_bytes"]["after_run"] > first["nvml_used_bytes"]["before_context"]
    equal = compared(truth, again)
    assert equal.returncode == 0
    assert "1 of 1 equal event for event" in equal.stdout

    changed = Path(shutil.copytree(again, tmp_path / "changed"))
    events = np.load(changed / "events.npz")[NAME]
    events[100, 1] += 512
    np.savez_compressed(changed / "events.npz", **{NAME: events})
    different = compared(truth, changed)
    assert different.returncode == 1
    assert "0 of 1 equal event for event" in different.stdout
