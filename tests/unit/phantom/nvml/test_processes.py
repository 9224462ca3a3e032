"""What pynvml sees of processes on simulated GPUs; each says itself what CUDA tells it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from ullage.ground.native.libraries import PHANTOM
from ullage.players.phantom.device import choose_device
from ullage.players.phantom.nvml.machine import LIBRARY, machine_of, open_machine

NUM_DEVICES = 8
MIB = 2**20
DEVICE = choose_device("a100-80gb")
CONTEXT_BYTES = DEVICE.gpu.context_high_bytes

# Takes "DEVICE BYTES" from its input, allocates, and prints what is used of the device.
PROCESS = f"""
import ctypes, os, sys
cuda = ctypes.CDLL({str(PHANTOM)!r})
address, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
for line in iter(sys.stdin.readline, ""):
    device, size = map(int, line.split())
    cuda.cudaSetDevice(device)
    if size < 0:
        cuda.cudaFree(address)
    elif size:
        assert cuda.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(size)) == 0
    cuda.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total))
    print(total.value - free.value, flush=True)
"""


class Process:
    """A program on the simulated GPUs of a directory."""

    def __init__(self, directory: Path, code: str = PROCESS) -> None:
        environment = {
            "ULLAGE_PHANTOM": "1",
            "ULLAGE_NUM_DEVICES": str(NUM_DEVICES),
            "ULLAGE_DEVICE": DEVICE.environment_text(),
            "ULLAGE_NVML": str(directory),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", code],
            env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self.pid = self._process.pid
        self.used_bytes: dict[int, int] = {}

    def allocate(self, device: int, num_bytes: int) -> int:
        """What CUDA says is used of the device from then on; a negative number gives back."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{device} {num_bytes}\n")
        self._process.stdin.flush()
        self.used_bytes[device] = int(self._process.stdout.readline())
        return self.used_bytes[device]

    def kill(self) -> None:
        """As the system does when memory runs out."""
        self._process.kill()
        self._process.wait()
        self.close()

    def kill_unnoticed(self) -> None:
        """Its parent has not asked for its end."""
        self._process.kill()
        while Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.01)

    def close(self) -> None:
        """It ends by itself."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@pytest.fixture
def node(tmp_path: Path) -> Path:
    directory = tmp_path / "node"
    open_machine(directory, machine_of(DEVICE.environment_text(), "", NUM_DEVICES, None))
    return directory


@pytest.fixture
def start(node: Path) -> Iterator[Callable[[], Process]]:
    started: list[Process] = []

    def begin() -> Process:
        started.append(Process(node))
        return started[-1]

    yield begin
    for process in started:
        process.kill()


@pytest.fixture(autouse=True)
def handles(node: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The devices, by pynvml as it comes from PyPI."""
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(node / LIBRARY)))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    pynvml.nvmlInit()
    yield [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(NUM_DEVICES)]
    pynvml.nvmlShutdown()


def uses_of(handle: object) -> dict[int, int]:
    """Bytes by process."""
    listed = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    assert [process.pid for process in listed] == sorted(process.pid for process in listed)
    return {process.pid: process.usedGpuMemory for process in listed}


def compare(handles: list[Any], processes: list[Process]) -> None:
    """All that is seen is what the processes say of themselves."""
    for device, handle in enumerate(handles):
        uses = {
            process.pid: process.used_bytes[device]
            for process in processes
            if device in process.used_bytes
        }
        assert uses_of(handle) == uses
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        assert memory.used == sum(uses.values())
        assert memory.total == DEVICE.gpu.total_bytes
        assert memory.free == memory.total - memory.used


def wait_for_liveness() -> None:
    """The library asks at most every 20 ms whether a process still runs."""
    time.sleep(0.03)


def test_a_machine_on_which_nothing_runs(handles: list[Any]) -> None:
    compare(handles, [])
    for device, handle in enumerate(handles):
        assert pynvml.nvmlDeviceGetName(handle) == DEVICE.gpu.name
        assert pynvml.nvmlDeviceGetIndex(handle) == device
        assert pynvml.nvmlDeviceGetUtilizationRates(handle).gpu == 0
    assert len({pynvml.nvmlDeviceGetUUID(handle) for handle in handles}) == NUM_DEVICES


def test_processes_come_and_go(start: Callable[[], Process], handles: list[Any]) -> None:
    first, second, third = start(), start(), start()
    assert first.allocate(0, 3 * MIB) == CONTEXT_BYTES + 4 * MIB  # whole pages of 2 MiB
    compare(handles, [first])
    second.allocate(0, 70 * MIB)
    second.allocate(5, 1)
    third.allocate(7, 0)  # it only asks, and has a context
    compare(handles, [first, second, third])
    second.allocate(5, 900 * MIB)
    second.allocate(5, -1)
    compare(handles, [first, second, third])
    second.kill()
    wait_for_liveness()
    compare(handles, [first, third])
    third.close()
    compare(handles, [first])
    fourth = start()
    fourth.allocate(3, 10 * MIB)
    compare(handles, [first, fourth])


def test_a_process_that_nobody_waits_for_is_gone(
    start: Callable[[], Process], handles: list[Any]
) -> None:
    process = start()
    process.allocate(0, 10 * MIB)
    compare(handles, [process])
    process.kill_unnoticed()
    wait_for_liveness()
    compare(handles, [])


def test_a_process_that_forks_is_one(node: Path, handles: list[Any]) -> None:
    code = PROCESS.replace(
        "    print(total",
        "    child = os.fork() or (sys.stdin.readline(), os._exit(0))\n    print(total",
    )
    process = Process(node, code)
    process.allocate(1, 10 * MIB)
    try:
        compare(handles, [process])
    finally:
        process.kill()


def test_files_that_say_nothing_are_left_out(node: Path, handles: list[Any]) -> None:
    """Another process with the same number, another version of ullage, half a file."""
    process = Process(node)
    process.allocate(0, 10 * MIB)
    content = bytearray((node / f"{process.pid}.use").read_bytes())
    content[4:8] = os.getpid().to_bytes(4, sys.byteorder)  # a process that began at another time
    (node / f"{os.getpid()}.use").write_bytes(content)
    content[0] += 1
    (node / "1.use").write_bytes(content)
    (node / "2.use").write_bytes(content[:100])
    (node / "3.use").mkdir()
    compare(handles, [process])
    process.kill()


def test_more_processes_than_there_is_room_for(
    start: Callable[[], Process], handles: list[Any]
) -> None:
    for _ in range(3):
        start().allocate(0, 1)
    library = pynvml.nvmlLib
    list_processes = library.nvmlDeviceGetComputeRunningProcesses_v3
    count, places = ctypes.c_uint(2), (ctypes.c_char * 96)()
    assert list_processes(handles[0], ctypes.byref(count), places) == 7  # INSUFFICIENT_SIZE
    assert count.value == 3
    assert bytes(places) == bytes(96)


@pytest.mark.parametrize(
    "ask",
    [
        lambda handle: pynvml.nvmlDeviceGetTemperature(handle, 0),
        pynvml.nvmlDeviceGetPowerUsage,
        pynvml.nvmlDeviceGetEnforcedPowerLimit,
        pynvml.nvmlDeviceGetFanSpeed,
        pynvml.nvmlDeviceGetPerformanceState,
        pynvml.nvmlDeviceGetMigMode,
        pynvml.nvmlDeviceGetCurrentClocksEventReasons,
        pynvml.nvmlDeviceGetDecoderUtilization,
        lambda handle: pynvml.nvmlDeviceGetClockInfo(handle, 1),
        lambda handle: pynvml.nvmlDeviceGetTotalEccErrors(handle, 1, 0),
        lambda handle: pynvml.nvmlDeviceGetPcieThroughput(handle, 0),
        lambda handle: pynvml.nvmlDeviceGetProcessUtilization(handle, 0),
    ],
)
def test_what_nobody_knows_is_not_supported(
    ask: Callable[[object], object], handles: list[Any]
) -> None:
    with pytest.raises(pynvml.NVMLError) as error:
        ask(handles[0])
    assert error.value.value == pynvml.NVML_ERROR_NOT_SUPPORTED


def test_a_load_that_nobody_tells_is_not_supported(
    start: Callable[[], Process], handles: list[Any]
) -> None:
    start().allocate(0, 1)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetUtilizationRates(handles[0])
    assert pynvml.nvmlDeviceGetUtilizationRates(handles[1]).gpu == 0
