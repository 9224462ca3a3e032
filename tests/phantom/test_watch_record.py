"""A real program under `ullage record` and `ullage watch` beside it: what it publishes is seen."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.phantom.bare_gpu import bare_environment
from tests.phantom.conftest import MAIN, environment, execute, find_program

from ullage.ground.native.libraries import LIBRARY_DIR
from ullage.ground.protocol.variables import NVML
from ullage.players.phantom.device import choose_device
from ullage.players.phantom.nvml.machine import machine_of, open_machine
from ullage.players.phantom.torch_build import check_torch, find_torch

pytestmark = [pytest.mark.phantom, pytest.mark.fresh]
GPU = "h100-80gb"
MIB = 2**20
LEAK = ("growing_losses/train.py", "--steps", "100000", "--batch-size", "128")


@contextmanager
def recorded(
    python: Path, node: Path, directory: Path, mode: str, *program: str
) -> Iterator[subprocess.Popen[bytes]]:
    """A program under `ullage record`, on a machine that NVML programs can see."""
    libraries = check_torch(find_torch(str(python)), LIBRARY_DIR).libraries_text()
    open_machine(node, machine_of(choose_device(GPU).environment_text(), libraries, 1, None))
    variables = {"XDG_RUNTIME_DIR": str(directory), NVML: str(node)}
    command = [
        sys.executable, "-c", MAIN, "record", "--python", str(python), "--mode", mode,
        "--", find_program(program[0]), *program[1:],
    ]  # fmt: skip
    with subprocess.Popen(
        command,
        cwd=directory,
        env=bare_environment(python, gpu=GPU, **variables),
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def look(node: Path, directory: Path) -> dict[str, Any]:
    """What `ullage watch --once --json` says."""
    variables = {"XDG_RUNTIME_DIR": str(directory), "LD_LIBRARY_PATH": str(node)}
    command = [sys.executable, "-c", MAIN, "watch", "--once", "--json"]
    code, stdout, stderr = execute(command, directory, environment(variables))
    assert code == 0, stderr
    document: dict[str, Any] = json.loads(stdout)
    return document


@pytest.mark.slow
def test_a_leak_is_seen_with_its_allocator_its_step_and_its_forecast(
    thin_python: Path, tmp_path: Path
) -> None:
    node = tmp_path / "node"
    with recorded(thin_python, node, tmp_path, "counters", *LEAK) as process:
        end_s = time.monotonic() + 240
        while True:
            assert process.poll() is None, "the program ended"
            assert time.monotonic() < end_s, "there is no forecast"
            seen = look(node, tmp_path)
            if any(outlook["full_in_s"] is not None for outlook in seen["outlooks"]):
                break
    ((job,), (device,), (outlook,)) = seen["jobs"], seen["devices"], seen["outlooks"]
    assert job["name"] == "train.py" and job["step"] >= 12
    assert job["phase"] is None, "counters note no phases"
    (part,) = job["devices"]
    assert part["uuid"] == device["uuid"] == outlook["uuid"]
    assert 0 < part["allocated_bytes"] <= part["reserved_bytes"]
    peaks = [peak[1] for peak in job["step_peaks"]]
    assert len(peaks) >= 12 and peaks[0] < peaks[-1]
    # NVML has the same process, with what its allocator reserved and the context.
    (process_seen,) = device["processes"]
    assert process_seen["pid"] == job["pid"] == outlook["pid"]
    # The job may have made some steps more between two of the readings.
    growth = (peaks[-1] - peaks[0]) / (len(peaks) - 1)
    assert device["used_bytes"] + 2 * growth >= process_seen["used_bytes"]
    assert process_seen["used_bytes"] > part["reserved_bytes"] / 2
    assert outlook["limit_bytes"] == part["reserved_bytes"] + device["free_bytes"]
    assert outlook["growth_bytes_per_step"] == pytest.approx(growth, rel=0.2)
    assert outlook["full_in_s"] > 0
    # Nobody knows these of a phantom, and nobody makes them up.
    assert device["temperature_c"] is None and device["power_w"] is None
    assert seen["sharing"] == ["none"]
    # Neither a path nor a command line is published.
    assert str(tmp_path) not in json.dumps(seen["jobs"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "phase"),
    [
        pytest.param("forward", "forward", marks=pytest.mark.nightly),
        ("backward", "backward"),
        pytest.param("optimizer", "optimizer", marks=pytest.mark.nightly),
        ("out_of_memory", "forward"),
    ],
)
def test_where_a_job_hangs_is_seen_and_so_is_memory_that_ran_out(
    thin_python: Path, tmp_path: Path, part: str, phase: str
) -> None:
    node = tmp_path / "node"
    has_run_out = part == "out_of_memory"
    with recorded(thin_python, node, tmp_path, "events", "recording/stalls.py", part) as process:
        end_s, jobs = time.monotonic() + 240, []
        while not jobs or (jobs[0]["step"], jobs[0]["phase"]) != (1, phase):
            assert process.poll() is None, "the program ended"
            assert time.monotonic() < end_s, jobs
            jobs = look(node, tmp_path)["jobs"]
    ((device,),) = [job["devices"] for job in jobs]
    assert device["num_ooms"] == has_run_out
    assert device["allocated_bytes"] > 0
