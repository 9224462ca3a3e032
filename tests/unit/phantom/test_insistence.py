"""A program whose main thread is in C++ when it is asked to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ullage.explain.losses import describe_end
from ullage.explain.program import Program
from ullage.players.inside.process.request_to_end import ask_to_end, reply_path
from ullage.players.phantom import insistence

TIMEOUT_S = 60
# Neither returns to Python: the first leaves Python's lock to other threads, the second keeps it.
IN_C = {
    "without the lock": "ctypes.CDLL(None).pthread_mutex_lock",
    "with the lock": "ctypes.PyDLL(None).pthread_mutex_lock",
}
CODE = """
import ctypes, os, pathlib, signal, sys
from ullage.players.inside.process.request_to_end import wait_for_request
run_dir, handled = pathlib.Path(sys.argv[1]), sys.argv[2] == "handled"
def handle(number, frame):
    sys.exit(7)
if not handled:
    handle.__module__ = "ullage.players.phantom.bootstrap"
signal.signal(15, handle)
note = lambda number: (run_dir / "noted").write_text(str(number))
wait_for_request(run_dir, os.getpid(), note, (run_dir / "record").touch)
mutex = (ctypes.c_char * 64)()
lock = {lock}
(run_dir / "ready").touch()
lock(mutex), lock(mutex)
"""


Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a program that hangs in C, and returns its process."""
    processes = []

    def start_one(where: str, handler: str = "default") -> subprocess.Popen[bytes]:
        code = CODE.replace("{lock}", IN_C[where])
        words = [sys.executable, "-c", code, str(tmp_path), handler]
        process = subprocess.Popen(words)
        processes.append(process)
        deadline = time.monotonic() + TIMEOUT_S
        while not (tmp_path / "ready").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.05)
        return process

    yield start_one
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(insistence, "_PATIENCE_S", 0.5)
    monkeypatch.setattr(insistence, "_GRACE_S", 2.0)


def end(process: subprocess.Popen[bytes], tmp_path: Path) -> bool:
    """Whether it had to be killed."""
    killed = []

    def kill() -> None:
        killed.append(process.pid)
        process.kill()

    process.terminate()
    insistence.insist(process, tmp_path, signal.SIGTERM, kill)
    process.wait(TIMEOUT_S)
    return bool(killed)


def test_another_thread_writes_the_record_and_the_signal_ends_it(
    tmp_path: Path, start: Start
) -> None:
    process = start("without the lock")
    assert not end(process, tmp_path)
    assert process.returncode == -signal.SIGTERM
    assert (tmp_path / "record").exists()
    assert (tmp_path / "noted").read_text() == "15"


def test_what_keeps_the_lock_of_python_is_killed(tmp_path: Path, start: Start) -> None:
    process = start("with the lock")
    assert end(process, tmp_path)
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "record").exists()


def test_a_program_with_a_handler_of_its_own_gets_its_time(tmp_path: Path, start: Start) -> None:
    process = start("without the lock", "handled")
    begun_s = time.monotonic()
    assert not end(process, tmp_path)
    assert time.monotonic() - begun_s > 1.9
    assert reply_path(tmp_path, process.pid).exists()
    assert (tmp_path / "record").exists()


def test_a_process_that_waits_for_no_request_is_not_asked(tmp_path: Path) -> None:
    assert not ask_to_end(tmp_path, os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize("was_killed", [True, False])
def test_the_memory_of_the_host_is_not_blamed_for_what_ullage_kills(*, was_killed: bool) -> None:
    program = Program(("train.py",), 1, exit_code=137, wall_s=1.0, was_killed=was_killed)
    text = describe_end(program, has_record=False)
    assert ("host memory" in text) is not was_killed
    assert ("SIGKILL, by ullage" in text) is was_killed
