"""What the page says of one thing; and the record that it reads for a job's owners."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ullage.ground.protocol.job import Job, JobDevice
from ullage.operate.watch.history import History
from ullage.operate.watch.sample import DeviceSample, Sample
from ullage.operate.watch.view import JobView, view
from ullage.verbs.watch.terminal.details import find_record, name_owners

SNAPSHOTS = Path(__file__).parents[2] / "golden" / "snapshots"


def seen_job(started_s: float) -> JobView:
    """Process 7 as a job."""
    part = JobDevice(0, "GPU-0", 0, 0, 0, 0, 0, 0, 0, 0, 0, 1)
    job = Job(7, started_s, started_s, "train.py", (part,))
    (found,) = view(Sample(0.0, "host", (DeviceSample(0, "GPU-0", "H100"),), (job,))).jobs()
    return found


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A /proc in which process 7 works in the directory `work`."""
    (tmp_path / "work").mkdir()
    (tmp_path / "proc/7").mkdir(parents=True)
    (tmp_path / "proc/7/cwd").symlink_to(tmp_path / "work")
    return tmp_path / "proc"


def test_the_newest_record_since_the_job_began_is_found(proc: Path, tmp_path: Path) -> None:
    now_s = time.time()
    for name, age_s in (("run.ullage", 5), ("ullage-1.pickle", 9), ("old.ullage", 900)):
        path = tmp_path / "work" / name
        path.touch()
        os.utime(path, (now_s - age_s, now_s - age_s))
    (tmp_path / "work/link.ullage").symlink_to("/dev/null")
    (tmp_path / "work/other.pickle").touch()
    found = find_record(seen_job(now_s - 60), proc)
    assert found is not None and found.name == "run.ullage"
    assert find_record(seen_job(now_s + 60), proc) is None


def test_without_the_process_there_is_no_record(tmp_path: Path) -> None:
    assert find_record(seen_job(0.0), tmp_path) is None


def test_a_file_that_is_no_record_is_said(tmp_path: Path) -> None:
    path = tmp_path / "run.ullage"
    path.write_bytes(b"nothing")
    rows = name_owners(path)
    assert rows[0] == ("record", "run.ullage") and rows[1][0] == "unreadable"


def test_a_history_has_a_bound_and_a_point_a_second() -> None:
    history = History()
    device = DeviceSample(0, "GPU-0", "H100", total_bytes=10, used_bytes=5, gpu_frac=0.25)
    for turn in range(3000):
        history.add(Sample(turn / 10, "host", (device,)))
    course = history.of(device)
    assert course.used_fracs == (0.5,) * 120 and course.gpu_fracs == (0.25,) * 120
    fresh = History()
    for turn in range(100):
        fresh.add(Sample(turn / 10, "host", (device,)))
    assert len(fresh.of(device).used_fracs) == 10


def test_a_history_goes_on_when_the_clock_is_set_back() -> None:
    history = History()
    device = DeviceSample(0, "GPU-0", "H100", total_bytes=10, used_bytes=5)
    for moment_s in (1000.0, 1001.0, 10.0, 11.0):
        history.add(Sample(moment_s, "host", (device,)))
    assert len(history.of(device).used_fracs) == 4
