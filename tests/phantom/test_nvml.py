"""Monitoring programs see the memory of a real program that trains on simulated GPUs."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pynvml
import pytest

from ullage.players.phantom.nvml.machine import LIBRARY

pytestmark = [pytest.mark.phantom, pytest.mark.fresh]
ROOT = Path(__file__).parent.parent.parent
TELLS_USE = str(ROOT / "tests" / "programs" / "tells_use.py")
LEAKS = str(ROOT / "examples" / "growing_losses" / "train.py")
ULLAGE = [sys.executable, "-c", "from ullage.cli import main; main()"]


class Training:
    """A program that leaks, one step at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = 0
        self.exit_code: int | None = None

    def step(self) -> int:
        """What CUDA says after the next step."""
        assert self._process.stdin is not None and self._process.stdout is not None
        if self.pid:
            self._process.stdin.write("\n")
            self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):
                told: dict[str, int] = json.loads(line)
                self.pid = told["pid"]
                return told["used"]
        pytest.fail("the program ended")

    def wait(self) -> int:
        """It goes on to its end; its exit code."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.read()
        return self._process.wait()


@contextmanager
def training(node: Path, python: Path, *options: str, steps: int = 3) -> Iterator[Training]:
    command = [
        *ULLAGE, "run", "--gpu", "t4", "--gpus", "2", "--python", str(python),
        "--nvml", str(node), "--snapshot", str(node.parent / f"{time.monotonic_ns()}.pickle"),
        *options, "--", TELLS_USE, LEAKS, "--steps", str(steps),
    ]  # fmt: skip
    process = subprocess.Popen(
        command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={name: value for name, value in os.environ.items() if not name.startswith("ULLAGE_")},
    )  # fmt: skip
    with process:
        yield Training(process)
        process.terminate()


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[Any]]:
    """The devices, by pynvml as it comes from PyPI."""

    def load() -> list[Any]:
        monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(tmp_path / "node" / LIBRARY)))
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        pynvml.nvmlInit()
        return [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(2)]

    return load


def uses_of(handle: object) -> dict[int, int]:
    listed = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    return {process.pid: process.usedGpuMemory for process in listed}


@pytest.mark.slow
def test_a_leak_grows_as_the_program_says(
    tmp_path: Path, thin_python: Path, ask: Callable[[], list[Any]]
) -> None:
    levels = []
    with training(tmp_path / "node", thin_python) as program:
        levels.append(program.step())
        handles = ask()
        for number in range(3):
            if number:
                levels.append(program.step())
            assert uses_of(handles[0]) == {program.pid: levels[-1]}
            assert pynvml.nvmlDeviceGetMemoryInfo(handles[0]).used == levels[-1]
            assert uses_of(handles[1]) == {}
        assert program.wait() == 0
    assert levels == sorted(set(levels)), "nothing leaked"
    assert uses_of(handles[0]) == {}
    assert pynvml.nvmlDeviceGetMemoryInfo(handles[0]).used == 0


@pytest.mark.slow
def test_of_two_jobs_one_is_killed(
    tmp_path: Path, thin_python: Path, ask: Callable[[], list[Any]]
) -> None:
    node = tmp_path / "node"
    with training(node, thin_python) as first, training(node, thin_python) as second:
        levels = {job.pid: used for job, used in ((job, job.step()) for job in (first, second))}
        handles = ask()
        assert len(levels) == 2
        assert uses_of(handles[0]) == levels
        assert pynvml.nvmlDeviceGetMemoryInfo(handles[0]).used == sum(levels.values())
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        assert uses_of(handles[0]) == {second.pid: levels[second.pid]}
        more = second.step()
        assert uses_of(handles[0]) == {second.pid: more}


@pytest.mark.slow
def test_the_clock_tells_the_load(
    tmp_path: Path, thin_python: Path, ask: Callable[[], list[Any]]
) -> None:
    """The first step has no whole second behind it."""
    with training(tmp_path / "node", thin_python, "--clock", "virtual", steps=4) as program:
        program.step()
        program.step()
        handles = ask()
        load = pynvml.nvmlDeviceGetUtilizationRates(handles[0])
        assert 0 < load.gpu <= 100
        assert load.memory <= load.gpu
        assert pynvml.nvmlDeviceGetUtilizationRates(handles[1]).gpu == 0
        program.wait()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "options"), [("nvitop", ("-1", "--no-unicode")), ("gpustat", ("--json",))]
)
def test_programs_of_others_show_it(
    tmp_path: Path, thin_python: Path, module: str, options: tuple[str, ...]
) -> None:
    if importlib.util.find_spec(module) is None:  # not imported: it would patch pynvml here
        pytest.skip(f"needs {module} (part of ullage[dev])")
    with training(tmp_path / "node", thin_python) as program:
        mib = program.step() / 2**20
        shown = subprocess.run(
            [*ULLAGE, "nvml", str(tmp_path / "node"), "--", sys.executable, "-m", module, *options],
            capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "100"},
        ).stdout  # fmt: skip
        program.wait()
    if module == "gpustat":
        gpus = json.loads(shown)["gpus"]
        assert [gpu["memory.used"] for gpu in gpus] == [int(mib), 0]
        (row,) = gpus[0]["processes"]
        assert (row["pid"], row["gpu_memory_usage"]) == (program.pid, int(mib))
        assert gpus[1]["processes"] == []
    else:
        assert (
            f"{mib:.1f}MiB /" in shown
            or f"{mib / 1024:.2f}GiB /" in shown
            or f"{mib:.0f}MiB /" in shown
        )
        assert str(program.pid) in shown
