"""What a job publishes is what a watcher reads, and nothing else gets in."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ullage.ground.protocol.job import (
    MAX_BYTES,
    Job,
    JobDevice,
    JobFileError,
    StepPeak,
    is_running,
    job_path,
    jobs_directory,
    parse_job,
    publish_job,
    read_job,
    withdraw_job,
)

GIB = 1 << 30
DEVICE = JobDevice(
    0, "GPU-1c4f7a52-0000-4000-8000-000000000000",
    30 * GIB, 40 * GIB, 31 * GIB, GIB, 35 * GIB, 41 * GIB, 2, 1, 7, 80 * GIB,
)  # fmt: skip
JOB = Job(
    os.getpid(), time.time(), time.time(), "train.py", (DEVICE,), rank=3, world_size=8,
    phase="backward", step=12, step_seconds=0.25, scaler_skips=1,
    step_peaks=(StepPeak(11, GIB, 2 * GIB, 0.3), StepPeak(12, GIB, 2 * GIB, 0.25)),
)  # fmt: skip


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return jobs_directory({"XDG_RUNTIME_DIR": str(tmp_path)}, make=True)


@pytest.mark.parametrize(
    "job",
    [
        JOB,
        Job(1, 2.0, 3, "x", (), None),
        replace(JOB, devices=(DEVICE, replace(DEVICE, uuid=None))),
    ],
)
def test_a_job_comes_back_as_it_was_published(directory: Path, job: Job) -> None:
    path = publish_job(job, directory)
    assert read_job(path) == job
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert [path.name for path in directory.iterdir()] == [f"{job.pid}.json"]
    withdraw_job(directory, job.pid)
    assert list(directory.iterdir()) == []


def test_the_file_stays_within_its_size_by_the_oldest_steps_then_the_emptiest_devices(
    directory: Path,
) -> None:
    peaks = tuple(StepPeak(10**9 + n, 10**12 + n, 10**12 + n, n + 1 / 3) for n in range(100))
    devices = tuple(replace(DEVICE, index=n, reserved_bytes=n) for n in range(27))
    path = publish_job(replace(JOB, step_peaks=peaks), directory)
    assert path.stat().st_size <= MAX_BYTES
    steps = read_job(path).step_peaks
    assert 32 < len(steps) <= 64 and steps == peaks[-len(steps) :]
    path = publish_job(replace(JOB, step_peaks=peaks, devices=devices), directory)
    assert path.stat().st_size <= MAX_BYTES
    job = read_job(path)
    assert job.num_devices_left_out == 27 - len(job.devices) > 0
    assert min(device.reserved_bytes for device in job.devices) == 27 - len(job.devices)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schema": "ullage.job/2"}, "schema"),
        ({"pid": "7"}, "pid"),
        ({"pid": True}, "pid"),
        ({"name": None}, "name"),
        ({"devices": {}}, "expected a list"),
        ({"devices": [{}]}, "index is missing"),
        ({"devices": [1]}, "object"),
        ({"step": 1.5}, "step"),
        ({"step_peaks": [[1, 2]]}, "step_peaks"),
        ({"step_peaks": [[1, 2, "3", 4.0]]}, "reserved_peak_bytes"),
    ],
)  # fmt: skip
def test_what_is_no_job_is_refused(directory: Path, changes: dict[str, object], words: str) -> None:
    document = json.loads(publish_job(JOB, directory).read_text()) | changes
    with pytest.raises(JobFileError, match=words):
        parse_job(json.dumps(document).encode())


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"{", b"\xff", b"[" * 5000, b'{"schema":"ullage.job/1","pid":NaN}']
)
def test_rubbish_is_a_problem_and_hides_no_other_job(directory: Path, content: bytes) -> None:
    publish_job(JOB, directory)
    job_path(directory, 1).write_bytes(content)
    job_path(directory, 2).symlink_to(job_path(directory, JOB.pid))
    assert read_job(job_path(directory, JOB.pid)) == JOB
    with pytest.raises(JobFileError):
        read_job(job_path(directory, 1))
    with pytest.raises(OSError, match="symbolic"):
        read_job(job_path(directory, 2))


def test_fields_of_the_future_are_ignored(directory: Path) -> None:
    document = json.loads(publish_job(JOB, directory).read_text()) | {"new": 1}
    document["devices"][0]["new"] = 1
    assert parse_job(json.dumps(document).encode()) == JOB


def test_a_directory_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ullage").mkdir(mode=0o700)
    (tmp_path / "ullage").chmod(0o755)
    with pytest.raises(JobFileError, match="chmod 700"):
        jobs_directory({"XDG_RUNTIME_DIR": str(tmp_path)})
    (tmp_path / "ullage").rmdir()
    (tmp_path / "ullage").symlink_to(tmp_path)
    with pytest.raises(JobFileError, match="not a directory"):
        jobs_directory({"XDG_RUNTIME_DIR": str(tmp_path)}, make=True)


def test_without_a_runtime_directory_the_name_has_the_user() -> None:
    assert jobs_directory({}) == Path(f"/tmp/ullage-{os.geteuid()}/jobs")
    assert jobs_directory({"XDG_RUNTIME_DIR": "relative"}) == jobs_directory({})


def test_a_job_runs_as_long_as_its_process() -> None:
    assert is_running(JOB)
    assert not is_running(replace(JOB, started_s=time.time() - 10**6)), "a number used again"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        job = replace(JOB, pid=process.pid, started_s=time.time())
        assert is_running(job)
        process.kill()
        while process.poll() is None:
            time.sleep(0.01)
        assert not is_running(job)
