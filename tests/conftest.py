"""What tests share: the interpreter of the environment that programs run in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How fast a machine is says nothing about the code: others may use it too.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def thin_python() -> Path:
    """The Python of a thin environment: $ULLAGE_TEST_PYTHON, or the one that `make test` makes."""
    named = os.environ.get("ULLAGE_TEST_PYTHON")
    # Not resolved: a virtual environment's python is a link to the one that it was made with.
    python = (ROOT / named) if named else ROOT / ".envs" / "torch-newest" / "bin" / "python"
    if not python.exists():
        message = f"no environment with PyTorch's CUDA build at {python}; `make test` makes one"
        # Who named one wants these tests run.
        if named:
            pytest.fail(message)
        pytest.skip(message)
    return python
