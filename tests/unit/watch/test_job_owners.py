"""Another user neither reads what a job publishes nor makes a watcher believe in jobs of his."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ullage.ground.protocol.job import (
    Job,
    JobFileError,
    job_path,
    jobs_directory,
    publish_job,
    read_job,
)
from ullage.operate.watch.jobs import JobReader

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
NOBODY = 65534
# Becomes another user once ullage is imported: that user may not be able to read its files.
FOREIGN = f"""
import json, os, sys, time
from pathlib import Path
from ullage.ground.protocol.job import Job, jobs_directory, publish_job, read_job
from ullage.operate.watch.jobs import JobReader
os.setgroups([])
os.setegid({NOBODY})
os.seteuid({NOBODY})
environment = {{"XDG_RUNTIME_DIR": sys.argv[1]}}

def kind_of(action):
    try:
        action()
    except Exception as error:
        return type(error).__name__
    return "nothing"
"""
READS = """
path = Path(sys.argv[2])
jobs, problems = JobReader(environment).read()
print(json.dumps([
    len(jobs), problems, kind_of(lambda: os.listdir(path.parent)), kind_of(lambda: read_job(path)),
    kind_of(path.read_bytes), kind_of(path.unlink), kind_of(lambda: path.write_text("{}")),
]))
"""
PUBLISHES = """
directory = jobs_directory(environment, make=True)
print(json.dumps(str(publish_job(Job(os.getppid(), time.time(), 0.0, "evil.py", ()), directory))))
"""


@pytest.fixture
def runtime() -> Iterator[Path]:
    """A directory that everybody may use; pytest's own are closed to other users anyway."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        yield Path(name)


def as_nobody(action: str, *arguments: Path) -> Any:
    """What a process of another user prints."""
    command = [sys.executable, "-c", FOREIGN + action, *map(str, arguments)]
    return json.loads(
        subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=60).stdout
    )


def publish(runtime: Path) -> Path:
    """This process as a job."""
    directory = jobs_directory({"XDG_RUNTIME_DIR": str(runtime)}, make=True)
    return publish_job(Job(os.getpid(), time.time(), time.time(), "train.py", ()), directory)


def test_another_user_cannot_read_or_change_a_job(runtime: Path) -> None:
    path = publish(runtime)
    count, (problem,), *refusals = as_nobody(READS, runtime, path)
    assert count == 0 and "belongs to user 0, not to this user (65534)" in problem
    assert refusals == ["PermissionError"] * 5
    assert read_job(path).name == "train.py"


def test_the_file_itself_is_closed_too(runtime: Path) -> None:
    """As where somebody has opened the directories."""
    path = publish(runtime)
    for folder in (path.parent, path.parent.parent):
        folder.chmod(0o755)
    _, _, lists, *refusals = as_nobody(READS, runtime, path)
    assert lists == "nothing"
    assert refusals == ["PermissionError"] * 4
    (problem,) = JobReader({"XDG_RUNTIME_DIR": str(runtime)}).read()[1]
    assert "is open to other users" in problem


def test_jobs_in_a_directory_of_another_user_are_not_believed(runtime: Path) -> None:
    path = Path(as_nobody(PUBLISHES, runtime))
    assert path.exists() and path.stat().st_uid == NOBODY
    environment = {"XDG_RUNTIME_DIR": str(runtime)}
    jobs, (problem,) = JobReader(environment).read()
    assert jobs == () and "belongs to user 65534, not to this user (0)" in problem
    with pytest.raises(JobFileError, match="belongs to user 65534"):
        jobs_directory(environment, make=True)  # so nothing is published there either


def test_a_file_of_another_user_among_ours_is_a_problem(runtime: Path) -> None:
    path = publish(runtime)
    forged = job_path(path.parent, os.getppid())
    forged.write_bytes(path.read_bytes())
    os.chown(forged, NOBODY, NOBODY)
    jobs, problems = JobReader({"XDG_RUNTIME_DIR": str(runtime)}).read()
    assert [job.pid for job in jobs] == [os.getpid()]
    assert problems == (f"{forged.name}: not a regular file of this user",)
