"""What a worker has to have, and what is said where it has not."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ullage.ground.errors import EnvironmentProblem, SpecError
from ullage.ground.version import __version__
from ullage.players.phantom.device import choose_device
from ullage.players.phantom.program import UserProgram
from ullage.players.phantom.torch_build import TorchBuild
from ullage.search.runs import workers
from ullage.search.runs.job import Job, make_options
from ullage.search.runs.workers import Surroundings, check_surroundings, surroundings_of
from ullage.verbs.fit.command import _executor
from ullage.verbs.run.options import RunOptions

BUILD = TorchBuild("2.15.0+cu132", "13.2", Path("torch"), {}, frozenset(), frozenset())


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job in a directory of its own, with the torch that is found on every machine."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import torch")
    monkeypatch.setattr(workers, "find_torch", lambda _python: BUILD)
    program = UserProgram(sys.executable, ("train.py",), ("train.py",))
    return Job(program, choose_device("t4"), BUILD, make_options(RunOptions([])))


def here(job: Job, **changes: Any) -> Surroundings:
    """Where the search is made."""
    return replace(surroundings_of(job), **changes)


def test_a_worker_like_this_machine_will_do(job: Job) -> None:
    check_surroundings(here(job), job)


def test_another_ullage_is_refused(job: Job) -> None:
    with pytest.raises(EnvironmentProblem, match=f"it has ullage {__version__}, and the search"):
        check_surroundings(here(job, ullage="0.0.1"), job)


def test_a_directory_that_is_not_there_is_refused(job: Job) -> None:
    with pytest.raises(EnvironmentProblem, match="it has no directory '/nowhere/at/all'"):
        check_surroundings(here(job, directory="/nowhere/at/all"), job)


def test_another_program_is_refused(job: Job, tmp_path: Path) -> None:
    place = here(job)
    (tmp_path / "train.py").write_text("import numpy")
    with pytest.raises(EnvironmentProblem, match=r"its 'train\.py' in .* is missing or another"):
        check_surroundings(place, job)


def test_another_build_of_torch_is_refused(job: Job) -> None:
    another = replace(job, build=replace(BUILD, pins={"nvidia-cudnn": "9.1"}))
    with pytest.raises(EnvironmentProblem, match=r"not the same build of 2\.15\.0"):
        check_surroundings(here(job), another)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ("def make(): pass", "it made None, which has no submit"),
        ("def make(): raise OSError('no such cluster')", "OSError: no such cluster"),
        ("def make(size): pass", "missing 1 required positional argument"),
        ("make = 3", "'int' object is not callable"),
        ("def make() pass", "SyntaxError"),
        ("raise SystemExit('bye')", "SystemExit: bye"),
        ("", "has no attribute 'make'"),
    ],
)
def test_what_makes_no_executor_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "pool", raising=False)
    (tmp_path / "pool.py").write_text(lines)
    with pytest.raises(SpecError, match=f"--executor pool:make: .*{says}"), _executor("pool:make"):
        pass
    sys.modules.pop("pool", None)
