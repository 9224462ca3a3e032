"""`ullage watch` beside a thousand processes and counters that jump back, through the NVML of
simulated GPUs: what its JSON and its exporter say.
"""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
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

NUM_PROCESSES = 1000
# Forks processes that each use a GPU, says their numbers, and ends them with its input.
CROWD = """
import ctypes, os, sys
cuda = ctypes.CDLL(sys.argv[1])
pids, answers = [], []
end, until = os.pipe()
for number in range(int(sys.argv[2])):
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(until)
        place = ctypes.c_void_p()
        size = ctypes.c_size_t((1 + number // 8) << 22)
        error = cuda.cudaSetDevice(number % 8) or cuda.cudaMalloc(ctypes.byref(place), size)
        os.write(write, b"0" if error else b"1")
        os.read(end, 1)
        os._exit(0)
    os.close(write)
    pids.append(pid)
    answers.append(os.read(read, 1))
    os.close(read)
assert answers == [b"1"] * len(pids)
print(*pids, flush=True)
sys.stdin.read()
os.close(until)
for pid in pids:
    os.waitpid(pid, 0)
"""


@pytest.fixture
def node(tmp_path: Path) -> Path:
    return make_node(tmp_path / "node")


@contextmanager
def crowd(node: Path) -> Iterator[list[int]]:
    """A thousand processes, 125 on each GPU; gives their numbers, in order of their sizes."""
    command = [sys.executable, "-c", CROWD, str(PHANTOM), str(NUM_PROCESSES)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=on_node(node)
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        yield [int(word) for word in process.stdout.readline().split()]
        process.stdin.close()
        process.wait(timeout=60)


class Exporter(Watcher):
    """A watcher that also serves metrics."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        super().__init__(process)
        assert process.stderr is not None
        match = re.search(r"http://\S+", process.stderr.readline())
        assert match is not None
        self._url = match[0]

    def values(self, name: str) -> dict[tuple[str, str | None], float]:
        """The values of a metric by GPU and process, as Prometheus's own parser reads the page."""
        with urllib.request.urlopen(self._url, timeout=20) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        return {
            (each.labels["gpu"], each.labels.get("pid")): each.value
            for family in families
            for each in family.samples
            if each.name == name
        }


@pytest.fixture
def exporter(node: Path) -> Iterator[Exporter]:
    command = [sys.executable, "-c", MAIN, "watch", "--json", "--interval", "0.1", "--listen", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=beside(node)
    ) as process:
        yield Exporter(process)
        process.kill()


@pytest.mark.slow
def test_a_thousand_processes(node: Path, exporter: Exporter) -> None:
    with crowd(node) as pids:
        sample = exporter.until(lambda sample: len(users(sample)) == len(pids))
        sizes = users(sample)
        assert set(sizes) == {(pid, number % NUM_GPUS) for number, pid in enumerate(pids)}
        context_bytes = sizes[pids[0], 0] - 4 * MIB
        assert 0 < context_bytes < 4096 * MIB
        for number, pid in enumerate(pids):
            own_bytes = sizes[pid, number % NUM_GPUS] - context_bytes
            assert abs(own_bytes - (1 + number // NUM_GPUS) * 4 * MIB) < 2 * MIB
        for device in sample["devices"]:
            ours = sum(size for (_, index), size in sizes.items() if index == device["index"])
            assert device["used_bytes"] == ours
        assert sample["sharing"] == ["time-slicing"] * NUM_GPUS
        exporter.next()  # a page is of the last sample
        exported = exporter.values("ullage_process_memory_bytes")
        assert exported == {(str(index), str(pid)): size for (pid, index), size in sizes.items()}
    exporter.until(lambda sample: not users(sample))
    exporter.next()
    assert exporter.values("ullage_process_memory_bytes") == {}


def device_0(sample: dict[str, Any]) -> dict[str, Any]:
    device: dict[str, Any] = sample["devices"][0]
    return device


def test_counters_that_jump_back(node: Path, exporter: Exporter) -> None:
    """As when the driver is loaded again: no rate is made up, and no error is reported as new."""

    def count(sent: int, errors: int) -> None:
        write_script(
            node, f"0 pcie_sent_bytes {sent}", "0 pcie_received_bytes 5",
            f"0 ecc_corrected {errors}", f"0 ecc_uncorrected {errors}",
        )  # fmt: skip

    seen: Counter[str] = Counter()

    def note(sample: dict[str, Any]) -> bool:
        rate = device_0(sample)["pcie_tx_bytes_per_s"]
        seen["unknown" if rate is None else "negative" if rate < 0 else "rate"] += 1
        assert sample["alerts"] == [] and (rate is None or rate < 4_000_000_000)
        return True

    count(3_000_000_000, 40)
    exporter.until(lambda sample: note(sample) and device_0(sample)["pcie_tx_bytes_per_s"] == 0)
    count(3_000_100_000, 40)
    exporter.until(lambda sample: note(sample) and device_0(sample)["pcie_tx_bytes_per_s"])
    count(100, 2)
    reasons = exporter.until(
        lambda sample: (
            note(sample) and device_0(sample)["ecc_corrected"] == 2
            and device_0(sample)["pcie_tx_bytes_per_s"] is None
        )
    )["notes"]  # fmt: skip
    assert {
        "field": "pcie_tx_bytes_per_s",
        "reason": "the counter jumped back",
        "devices": [0],
    } in (reasons)
    count(50_100, 2)
    exporter.until(lambda sample: note(sample) and device_0(sample)["pcie_tx_bytes_per_s"])
    exporter.next()
    assert exporter.values("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL") == {("0", None): 2}
    assert exporter.values("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL") == {("0", None): 2}
    assert seen["rate"] and not seen["negative"]
