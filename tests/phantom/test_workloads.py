"""Estimates of speech and diffusion against transformers and diffusers on the phantom."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from benchmarks.workloads import run

pytestmark = [pytest.mark.phantom, pytest.mark.nightly]


@pytest.fixture
def python(thin_python: Path) -> str:
    """An interpreter with both libraries."""
    look = (
        "import importlib.util as u, sys; "
        "sys.exit(any(u.find_spec(name) is None for name in ('transformers', 'diffusers')))"
    )
    if subprocess.run([str(thin_python), "-c", look], check=False).returncode:
        pytest.skip("not in the environment: transformers, diffusers")
    return str(thin_python)


def test_a_burst_of_speech_is_inside_the_interval(
    python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "SPEECH", (("whisper-tiny", 6, 3),))
    (row,) = run.run_speech(python)
    likely, low, high, measured = row["peak"]
    assert low <= measured <= high
    assert likely == pytest.approx(measured, rel=0.02)
    assert row["weights"][0] == row["weights"][1]


def test_a_pipeline_of_images_is_inside_the_interval(
    python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "DIFFUSION", (("sd15-unet", 2, 256, "model", False),))
    (row,) = run.run_diffusion(python)
    likely, low, high, measured = row["peak"]
    assert low <= measured <= high
    assert likely == pytest.approx(measured, rel=0.02)
