"""Faults and figures that a script gives simulated GPUs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest

from ullage.players.phantom.device import choose_device
from ullage.players.phantom.nvml.machine import LIBRARY, machine_of, open_machine


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    directory = tmp_path / "node"
    open_machine(directory, machine_of(choose_device("l4").environment_text(), "", 4, None))
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(directory / LIBRARY)))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    pynvml.nvmlInit()
    yield directory
    pynvml.nvmlShutdown()


def write(node: Path, *lines: str) -> None:
    """Replaces the script at once."""
    draft = node / ".script"
    draft.write_text("\n".join(lines) + "\n", encoding="ascii")
    draft.replace(node / "script")


def test_a_gpu_is_lost_and_comes_back(node: Path) -> None:
    handles = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(4)]
    write(node, "# it falls off the bus", "3 lost 1")
    for ask in (
        pynvml.nvmlDeviceGetMemoryInfo,
        pynvml.nvmlDeviceGetName,
        pynvml.nvmlDeviceGetComputeRunningProcesses,
        pynvml.nvmlDeviceGetTotalEnergyConsumption,  # not supported, on a GPU that is there
    ):
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            ask(handles[3])
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlDeviceGetHandleByIndex(3)
    assert pynvml.nvmlDeviceGetCount() == 4
    assert pynvml.nvmlDeviceGetMemoryInfo(handles[2]).used == 0
    (node / "script").unlink()
    assert pynvml.nvmlDeviceGetMemoryInfo(handles[3]).used == 0


def test_a_function_returns_what_the_script_says(node: Path) -> None:
    handles = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(2)]
    write(node, "* nvmlDeviceGetName 4", "1 nvmlDeviceGetName 999")
    with pytest.raises(pynvml.NVMLError_NoPermission):
        pynvml.nvmlDeviceGetName(handles[0])
    with pytest.raises(pynvml.NVMLError_Unknown):
        pynvml.nvmlDeviceGetName(handles[1])


@pytest.mark.parametrize(
    ("line", "ask", "value"),
    [
        ("temperature 91", lambda card: pynvml.nvmlDeviceGetTemperature(card, 0), 91),
        ("power 412.5", pynvml.nvmlDeviceGetPowerUsage, 412500),
        ("power_limit 700", pynvml.nvmlDeviceGetEnforcedPowerLimit, 700000),
        ("utilization 35", lambda card: pynvml.nvmlDeviceGetUtilizationRates(card).gpu, 35),
        ("sm_clock 1410", lambda card: pynvml.nvmlDeviceGetClockInfo(card, 1), 1410),
        ("memory_clock 877", lambda card: pynvml.nvmlDeviceGetClockInfo(card, 2), 877),
        ("throttle 0x40", pynvml.nvmlDeviceGetCurrentClocksEventReasons, 64),
        ("ecc_uncorrected 5", lambda card: pynvml.nvmlDeviceGetTotalEccErrors(card, 1, 0), 5),
        ("ecc_corrected 6", lambda card: pynvml.nvmlDeviceGetTotalEccErrors(card, 0, 1), 6),
        ("ecc_mode 1", pynvml.nvmlDeviceGetEccMode, [1, 1]),
        ("pcie_sent 900", lambda card: pynvml.nvmlDeviceGetPcieThroughput(card, 0), 900),
        ("fan 40", pynvml.nvmlDeviceGetFanSpeed, 40),
    ],
)
def test_figures(node: Path, line: str, ask: Callable[[object], object], value: object) -> None:
    card, other = (pynvml.nvmlDeviceGetHandleByIndex(number) for number in (2, 1))
    write(node, f"2 {line.split()[0]} 1", f"2 {line}")
    assert ask(card) == value
    if line.startswith("utilization"):  # a device that nobody uses is known to rest
        assert ask(other) == 0
        return
    with pytest.raises(pynvml.NVMLError_NotSupported):
        ask(other)


def test_a_line_that_cannot_be_read_is_told(node: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lines = ("2 temperature", "x temperature 1", "2 temperature warm", "2 power -1", "2 power nan")
    write(node, *lines, "2 temperature 50  # so it is")
    card = pynvml.nvmlDeviceGetHandleByIndex(2)
    assert pynvml.nvmlDeviceGetTemperature(card, 0) == 50
    errors = capfd.readouterr().err.splitlines()
    assert [error.split(" of ")[0] for error in errors] == [
        f"ullage: line {number}" for number in (1, 2, 3, 4, 5)
    ]


def activity_of(card: object) -> list[tuple[int, float]]:
    """Status and value of SM activity, SM occupancy and use of the bandwidth, by GPM."""
    samples = [pynvml.nvmlGpmSampleGet(card, pynvml.nvmlGpmSampleAlloc()) for _ in range(2)]
    request = pynvml.c_nvmlGpmMetricsGet_t()
    request.version, request.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, 3
    request.sample1, request.sample2 = samples
    for place, number in enumerate((2, 3, 10)):
        request.metrics[place].metricId = number
    pynvml.nvmlGpmMetricsGet(request)
    for sample in samples:
        pynvml.nvmlGpmSampleFree(sample)
    return [(metric.nvmlReturn, metric.value) for metric in list(request.metrics)[:3]]


def test_activity_is_what_the_script_says_from_hopper_on(tmp_path: Path, node: Path) -> None:
    old = pynvml.nvmlDeviceGetHandleByIndex(1)  # an L4
    write(node, "1 sm_active 41")
    assert not pynvml.nvmlGpmQueryDeviceSupport(old).isSupportedDevice
    with pytest.raises(pynvml.NVMLError_NotSupported):
        activity_of(old)


def test_nobody_knows_the_activity_without_a_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "hopper"
    open_machine(directory, machine_of(choose_device("h100-80gb").environment_text(), "", 2, None))
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(directory / LIBRARY)))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    pynvml.nvmlInit()
    card, other = (pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(2))
    assert not pynvml.nvmlGpmQueryDeviceSupport(card).isSupportedDevice
    write(directory, "0 sm_active 41.5", "0 dram_active 33")
    assert pynvml.nvmlGpmQueryDeviceSupport(card).isSupportedDevice
    assert not pynvml.nvmlGpmQueryDeviceSupport(other).isSupportedDevice
    active, occupancy, dram = activity_of(card)
    assert active == (0, 41.5) and dram == (0, 33.0)
    assert occupancy[0] == pynvml.NVML_ERROR_NOT_SUPPORTED
    pynvml.nvmlShutdown()
