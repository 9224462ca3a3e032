"""The child gets the phantom in front of what was there; its end and its signals come back."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from ullage.ground.errors import SpecError
from ullage.players.phantom.device import choose_device
from ullage.players.phantom.launch import (
    LIBRARY_DIR,
    SITE_DIR,
    LaunchOptions,
    make_environment,
    start,
)
from ullage.players.phantom.program import UserProgram
from ullage.players.phantom.torch_build import TorchBuild
from ullage.search.runs.job import make_options
from ullage.verbs.run.options import RunOptions

RUN = os.environ | {"ULLAGE_RUN_DIR": "no such directory"}
BUILD = TorchBuild("2.15.0", "13.2", Path("torch"), {}, frozenset(), frozenset())


def environment(options: LaunchOptions, **base: str) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as run_dir:
        return make_environment(Path(run_dir), choose_device(), BUILD, options, base)


def run_code(code: str) -> UserProgram:
    return UserProgram(sys.executable, ("-c", code), ("-c", code))


def test_the_phantom_comes_before_what_was_there() -> None:
    made = environment(LaunchOptions(), LD_PRELOAD="mine.so", PYTHONPATH="/mine")
    assert Path(made["LD_PRELOAD"].split(":")[0]).samefile(LIBRARY_DIR / "libullage_phantom.so")
    assert made["LD_PRELOAD"].endswith(":mine.so")
    assert made["PYTHONPATH"] == f"{SITE_DIR}:/mine"
    assert made["ULLAGE_PHANTOM"] == "1"
    assert "PYTORCH_ALLOC_CONF" not in made


def test_options_become_variables_and_those_of_an_outer_run_do_not_leak() -> None:
    made = environment(
        LaunchOptions(RunOptions((), alloc_conf="expandable_segments:True", steps=3))
    )
    assert json.loads(made["ULLAGE_OPTIONS"])["steps"] == 3
    assert made["PYTORCH_ALLOC_CONF"] == made["PYTORCH_CUDA_ALLOC_CONF"]
    inner = environment(LaunchOptions(), ULLAGE_OPTIONS=made["ULLAGE_OPTIONS"])
    assert json.loads(inner["ULLAGE_OPTIONS"])["steps"] is None


@pytest.mark.parametrize("platform", ["linux", "windows"])
def test_the_platform_becomes_a_variable(platform: str) -> None:
    assert (
        environment(make_options(RunOptions([], platform=platform)))["ULLAGE_PLATFORM"] == platform
    )


def test_another_platform_is_refused() -> None:
    with pytest.raises(SpecError, match="'macos' is not known; expected linux or windows"):
        make_options(RunOptions([], platform="macos"))


def test_fewer_than_one_step_is_refused() -> None:
    with pytest.raises(SpecError, match="1 or more"):
        environment(LaunchOptions(RunOptions((), steps=0)))


@pytest.mark.parametrize(
    ("code", "expected"),
    [("", 0), ("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137)],
)
def test_the_exit_code_is_the_programs_or_128_and_the_signal(code: str, expected: int) -> None:
    with start(run_code(code), RUN, stdout_to_stderr=False) as child:
        ended = child.wait()
    assert (ended.exit_code, ended.was_interrupted) == (expected, False)


def test_its_output_can_leave_stdout_alone(capfd: pytest.CaptureFixture[str]) -> None:
    with start(run_code("print('hello')"), RUN, stdout_to_stderr=True) as child:
        child.wait()
    assert capfd.readouterr() == ("", "hello\n")


@pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(), reason="signals need a main thread"
)
@pytest.mark.parametrize(("number", "expected"), [(signal.SIGTERM, 15), (signal.SIGINT, 2)])
def test_a_signal_reaches_the_program_which_ends_in_its_own_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, expected: int
) -> None:
    monkeypatch.setattr("ullage.players.phantom.launch.is_in_foreground", lambda: False)
    ready = tmp_path / "ready"
    code = (
        "import signal, sys, time, pathlib\n"
        "for n in (2, 15): signal.signal(n, lambda number, frame: sys.exit(number))\n"
        f"pathlib.Path({str(ready)!r}).touch()\n"
        "time.sleep(30)\n"
    )
    sent = []

    def send() -> None:
        if ready.exists() and not sent:
            sent.append(number)
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    if before is signal.SIG_IGN:  # of the shell that started pytest in its background
        monkeypatch.setattr(
            "ullage.players.phantom.launch.signal.getsignal", lambda _: signal.SIG_DFL
        )
    with start(run_code(code), RUN, stdout_to_stderr=False) as child:
        ended = child.wait(send)
    assert ended.exit_code == expected
    assert ended.was_interrupted
    monkeypatch.undo()
    assert signal.getsignal(number) == before


def test_a_child_does_not_outlive_an_error_of_ours() -> None:
    with (
        pytest.raises(ZeroDivisionError),
        start(run_code("import time; time.sleep(60)"), RUN, stdout_to_stderr=False) as child,
    ):
        raise ZeroDivisionError
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)
