"""A time limit holds whatever the executor of a search does."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from ullage.players.phantom.device import choose_device
from ullage.players.phantom.program import UserProgram
from ullage.players.phantom.torch_build import TorchBuild
from ullage.search.runs import trials
from ullage.search.runs.job import Job, make_options
from ullage.search.runs.search import LimitReached, search
from ullage.search.runs.trials import Trials
from ullage.verbs.run.options import RunOptions

BUILD = TorchBuild("2.15.0+cu132", "13.2", Path("torch"), {}, frozenset(), frozenset())
REPORT: Any = type("Report", (), {"verdict": None, "reason": "fits", "program": None})()


class Hangs:
    """Its first runs end, and the others do not."""

    def __init__(self, num_ending: int, hang: Callable[[], Any]) -> None:
        self.num_left, self.hang = num_ending, hang

    def submit(self, *_: Any) -> Any:
        if not self.num_left:
            return self.hang()
        self.num_left -= 1
        done: Future[Any] = Future()
        done.set_result((REPORT, ""))
        return done


class WithoutLimit:
    """A result that cannot be waited for with a limit, as a job of submitit's."""

    def result(self) -> None:
        threading.Event().wait()

    def cancel(self) -> None:
        """Has no effect."""


HANGS: dict[str, Callable[[], Any]] = {
    "a future that never ends": Future,
    "a result without a limit": WithoutLimit,
    "a submit that does not return": threading.Event().wait,
}


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    program = UserProgram(sys.executable, ("train.py",), ("train.py",))
    monkeypatch.setattr(trials, "_verdict", lambda _report: "fits")
    yield Job(program, choose_device("t4"), BUILD, make_options(RunOptions([])))


@pytest.mark.parametrize("how", HANGS)
def test_a_run_that_never_ends_is_given_up_at_the_time_limit(job: Job, how: str) -> None:
    executor: Any = Hangs(1, HANGS[how])
    began_s = time.monotonic()
    with Trials(job, executor=executor, end_s=began_s + 0.3) as runs:
        assert runs.run([job]) == [REPORT]
        with pytest.raises(LimitReached, match="while 2 runs on Hangs had not ended"):
            runs.run([job, job])
        # Of another one that is not even waited for.
        with pytest.raises(LimitReached):
            runs.run([job])
    assert runs.num_runs == 1
    assert 0.3 <= time.monotonic() - began_s < 30


def test_the_loop_of_a_search_ends_with_what_it_knew_at_the_limit() -> None:
    def attempt(number: int) -> int:
        if number == 3:
            raise LimitReached("a run had not ended")
        return number

    assert search(0, lambda state: state + 1, attempt, lambda _state, _trial, got: got) == 2
    with pytest.raises(LimitReached):
        search(2, lambda state: state + 1, attempt, lambda _state, _trial, got: got)


POOL = """
from concurrent.futures import {base}
class Pool({base}):
    def submit(self, *_):
        return super().submit(__import__("time").sleep, 600)
"""
FIT = """
import sys, threading
from ullage import cli as main
from ullage.verbs.fit import command
command._PATIENCE_S = 0.1
def run(options):
    thread = threading.Thread(target=options.executor.submit, args=(0,), daemon=True)
    thread.start()
    thread.join()
    print("the best so far")
    raise main.UllageError("the time limit was reached")
import ullage.verbs.fit.function
ullage.verbs.fit.function.fit.act = run
sys.argv = ["ullage", "fit", "--gpu", "l4", "--", "train.py"]
main.main()
"""


@pytest.mark.parametrize("base", ["ThreadPoolExecutor", "ProcessPoolExecutor"])
def test_the_command_ends_though_a_run_of_its_executor_does_not(tmp_path: Path, base: str) -> None:
    (tmp_path / "pool.py").write_text(POOL.format(base=base))
    (tmp_path / "ullage.toml").write_text('[fit]\nexecutor = "pool:Pool"\n')
    done = subprocess.run(
        [sys.executable, "-c", FIT], cwd=tmp_path, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("the best so far\n", 2)
    assert done.stderr == "ullage: the time limit was reached\n"
