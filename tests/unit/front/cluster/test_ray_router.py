"""The router in a real Ray Serve of this machine alone, on its loopback device."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Ray listens on the loopback device alone (ray 2.60, ENABLE_RAY_CLUSTER).
ALONE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
# Seconds until its first process answers; 30 by default, too few for a machine with other work.
PATIENT = {"RAY_gcs_server_port_wait_time_s": "120", "RAY_worker_register_timeout_seconds": "240"}
PROGRAM = Path(__file__).with_name("serve_program.py")


@pytest.mark.nightly
def test_replicas_are_never_given_more_than_their_caches_hold() -> None:
    """Two replicas whose caches hold two requests each, and twelve requests at once: each replica
    says how many it ran at the same time, and what never fits fails.
    """
    python = os.environ.get("ULLAGE_TEST_RAY_PYTHON", sys.executable)
    has_serve = subprocess.run([python, "-c", "import ray.serve"], capture_output=True, check=False)
    if has_serve.returncode:
        pytest.skip("needs ray[serve], here or in the Python of ULLAGE_TEST_RAY_PYTHON")
    outcome = subprocess.run(
        [python, str(PROGRAM)], env=os.environ | ALONE | PATIENT, capture_output=True, text=True,
        timeout=600, check=False,
    )  # fmt: skip
    assert outcome.returncode == 0, outcome.stderr[-4000:]
    lines = outcome.stdout.splitlines()
    assert "most at once: 2 2" in lines
    assert "answered: 12" in lines
    assert "too large: RequestRefused" in lines
    assert "Unexpected error" not in outcome.stderr
