"""Jobs are those that run; what cannot be trusted is a problem, not a job."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ullage.ground.protocol.job import Job, job_path, jobs_directory, publish_job, remove_ended_jobs
from ullage.operate.watch.jobs import JobReader


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The variables under which jobs publish themselves."""
    return {"XDG_RUNTIME_DIR": str(tmp_path)}


def job() -> Job:
    """This process as a job."""
    return Job(os.getpid(), time.time(), time.time(), "train.py", ())


def test_a_running_job_is_read_and_its_next_state_too(environment: dict[str, str]) -> None:
    directory = jobs_directory(environment, make=True)
    first = job()
    publish_job(first, directory)
    reader = JobReader(environment)
    assert reader.read() == ((first,), ())
    assert reader.read()[0][0] is reader.read()[0][0]
    publish_job(replace(first, step=5), directory)
    assert reader.read() == ((replace(first, step=5),), ())
    job_path(directory, first.pid).unlink()
    assert reader.read() == ((), ())


def test_a_job_that_has_ended_is_none(environment: dict[str, str]) -> None:
    publish_job(replace(job(), pid=2**22 + 1), jobs_directory(environment, make=True))
    assert JobReader(environment).read() == ((), ())


def test_a_job_that_ran_out_of_memory_is_seen_for_a_moment_after_its_end(
    environment: dict[str, str],
) -> None:
    directory = jobs_directory(environment, make=True)
    ended = replace(job(), pid=2**22 + 1, ended_s=time.time())
    publish_job(ended, directory)
    assert JobReader(environment).read() == ((ended,), ())
    remove_ended_jobs(directory)
    assert JobReader(environment).read() == ((ended,), ())
    publish_job(replace(ended, ended_s=time.time() - 60), directory)
    assert JobReader(environment).read() == ((), ())
    remove_ended_jobs(directory)
    assert not job_path(directory, ended.pid).exists()


def test_where_nobody_publishes_there_is_nothing(environment: dict[str, str]) -> None:
    assert JobReader(environment).read() == ((), ())


def test_rubbish_and_links_are_problems(environment: dict[str, str], tmp_path: Path) -> None:
    directory = jobs_directory(environment, make=True)
    publish_job(job(), directory)
    job_path(directory, 1).write_text("rubbish")
    job_path(directory, 2).symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_text("{}")
    jobs, problems = JobReader(environment).read()
    assert [each.pid for each in jobs] == [os.getpid()]
    assert len(problems) == 2
    assert problems[0].startswith("1.json: ") and problems[1].startswith("2.json: ")


def test_a_directory_that_is_open_to_others_is_not_trusted(environment: dict[str, str]) -> None:
    directory = jobs_directory(environment, make=True)
    publish_job(job(), directory)
    directory.chmod(0o777)
    jobs, (problem,) = JobReader(environment).read()
    assert jobs == () and "open to other users" in problem
