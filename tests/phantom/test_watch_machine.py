"""`ullage watch` beside processes that come and go on a machine of eight simulated GPUs, and beside
drivers that refuse: what it says is what the processes use.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ullage.native.libraries import PHANTOM
from ullage.phantom.device import choose_device

machines = pytest.importorskip("ullage.phantom.nvml.machine")
NUM_GPUS = 8
MIB = 2**20
MAIN = "from ullage.cli.main import main; main()"
# Uses the GPU and the bytes that it is told, says so, and ends with its input.
USER = """
import ctypes, sys
cuda = ctypes.CDLL(sys.argv[1])
place = ctypes.c_void_p()
assert cuda.cudaSetDevice(int(sys.argv[2])) == 0
assert cuda.cudaMalloc(ctypes.byref(place), ctypes.c_size_t(int(sys.argv[3]))) == 0
print("uses", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """The directory that stands for a machine with eight GPUs."""
    device = choose_device("h100-80gb").environment_text()
    machines.open_machine(tmp_path / "node", machines.machine_of(device, "", NUM_GPUS, None))
    return tmp_path / "node"


def clean() -> dict[str, str]:
    """The environment without what a test before this one may have set."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ULLAGE_")}


@contextmanager
def use(node: Path, index: int, num_bytes: int) -> Iterator[int]:
    """A process that uses a GPU; gives its number."""
    environment = clean() | {
        "ULLAGE_PHANTOM": "1",
        "ULLAGE_NVML": str(node),
        "ULLAGE_NUM_DEVICES": str(NUM_GPUS),
        "ULLAGE_DEVICE": choose_device("h100-80gb").environment_text(),
    }
    command = [sys.executable, "-c", USER, str(PHANTOM), str(index), str(num_bytes)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "uses\n"
        yield process.pid
        process.stdin.close()
        process.wait(timeout=30)


class Watcher:
    """The lines of `ullage watch --json`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def until(self, is_there: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The next sample that is as wanted; fails after a minute."""
        assert self._process.stdout is not None
        end_s = time.monotonic() + 60
        while time.monotonic() < end_s:
            sample: dict[str, Any] = json.loads(self._process.stdout.readline())
            if is_there(sample):
                return sample
        raise AssertionError("no sample was as it should be")


@pytest.fixture
def watcher(node: Path) -> Iterator[Watcher]:
    """`ullage watch` on that machine, at 10 Hz."""
    command = [sys.executable, "-c", MAIN, "watch", "--json", "--interval", "0.1"]
    environment = clean() | {"LD_LIBRARY_PATH": str(node), "XDG_RUNTIME_DIR": str(node.parent)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        yield Watcher(process)
        process.kill()


def users(sample: dict[str, Any]) -> dict[tuple[int, int], int]:
    """The bytes of each process on each GPU."""
    return {
        (process["pid"], device["index"]): process["used_bytes"]
        for device in sample["devices"]
        for process in device["processes"] or ()
    }


def test_thirty_processes_that_come_and_go(node: Path, watcher: Watcher) -> None:
    idle = watcher.until(lambda sample: len(sample["devices"]) == NUM_GPUS)
    assert users(idle) == {}
    for turn in range(5):
        sizes = {place: (64 * (turn + 1) + place) * MIB for place in range(6)}
        with (
            use(node, 0, sizes[0]) as p0, use(node, 1, sizes[1]) as p1,
            use(node, 2, sizes[2]) as p2, use(node, 2, sizes[3]) as p3,
            use(node, 7, sizes[4]) as p4, use(node, 7, sizes[5]) as p5,
        ):  # fmt: skip
            places = {(p0, 0), (p1, 1), (p2, 2), (p3, 2), (p4, 7), (p5, 7)}
            sample = watcher.until(lambda sample, places=places: set(users(sample)) == places)
            found = users(sample)
            context_bytes = found[p0, 0] - sizes[0]
            for number, place in enumerate([(p0, 0), (p1, 1), (p2, 2), (p3, 2), (p4, 7), (p5, 7)]):
                assert 0 <= found[place] - sizes[number] - context_bytes < 4 * MIB
            for device in sample["devices"]:
                ours = sum(size for (_, index), size in found.items() if index == device["index"])
                assert device["used_bytes"] - idle["devices"][device["index"]]["used_bytes"] == ours
        watcher.until(lambda sample: not users(sample))


def test_a_driver_that_refuses_and_a_gpu_that_is_lost(node: Path, watcher: Watcher) -> None:
    watcher.until(lambda sample: len(sample["devices"]) == NUM_GPUS)
    script = "3 lost 1\n* nvmlDeviceGetPowerUsage 3\n2 temperature 91\n2 ecc_uncorrected 5\n"
    (node / ".script").write_text(script)
    (node / ".script").replace(node / "script")
    sample = watcher.until(
        lambda sample: (
            sample["devices"][2]["temperature_c"] == 91
            and sample["devices"][2]["ecc_uncorrected"] == 5
        )
    )
    lost, well = sample["devices"][3], sample["devices"][4]
    assert lost["is_lost"] and lost["used_bytes"] is None
    assert not well["is_lost"] and well["used_bytes"] is not None and well["power_w"] is None
    notes = {note["field"]: note for note in sample["notes"]}
    assert notes["power_w"]["devices"] == [0, 1, 2, 4, 5, 6, 7]
    assert notes["devices"]["devices"] == [3]
    (node / ".script").write_text("")
    (node / ".script").replace(node / "script")
    watcher.until(lambda sample: not sample["devices"][3]["is_lost"])


def test_a_container_that_hides_processes(node: Path, watcher: Watcher) -> None:
    (node / ".script").write_text("* hide_processes 1\n")
    (node / ".script").replace(node / "script")
    with use(node, 1, 512 * MIB):
        sample = watcher.until(lambda sample: sample["devices"][1]["used_bytes"] > 512 * MIB)
    assert users(sample) == {}
