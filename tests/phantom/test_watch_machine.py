"""`ullage watch` beside processes that come and go on a machine of eight simulated GPUs, and beside
drivers that refuse: what it says is what the processes use.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.phantom.watching import (
    MAIN,
    MIB,
    NUM_GPUS,
    Watcher,
    beside,
    make_node,
    on_node,
    users,
    write_script,
)

from ullage.ground.native.libraries import PHANTOM

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
    return make_node(tmp_path / "node")


@contextmanager
def use(node: Path, index: int, num_bytes: int) -> Iterator[int]:
    """A process that uses a GPU; gives its number."""
    command = [sys.executable, "-c", USER, str(PHANTOM), str(index), str(num_bytes)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=on_node(node)
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "uses\n"
        yield process.pid
        process.stdin.close()
        process.wait(timeout=30)


@pytest.fixture
def watcher(node: Path) -> Iterator[Watcher]:
    """`ullage watch` on that machine, at 10 Hz."""
    command = [sys.executable, "-c", MAIN, "watch", "--json", "--interval", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=beside(node)) as process:
        yield Watcher(process)
        process.kill()


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
    write_script(
        node, "3 lost 1", "* nvmlDeviceGetPowerUsage 3", "2 temperature 91", "2 ecc_uncorrected 5"
    )
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
    write_script(node)
    watcher.until(lambda sample: not sample["devices"][3]["is_lost"])


def test_a_container_that_hides_processes(node: Path, watcher: Watcher) -> None:
    write_script(node, "* hide_processes 1")
    with use(node, 1, 512 * MIB):
        sample = watcher.until(lambda sample: sample["devices"][1]["used_bytes"] > 512 * MIB)
    assert users(sample) == {}
