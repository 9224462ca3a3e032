"""MIG, MPS and time slicing told apart, by a scripted NVML."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ullage.operate.watch.history import History
from ullage.operate.watch.machine import MachineSource
from ullage.operate.watch.sample import Sample
from ullage.operate.watch.sharing import Sharing, sharing_of
from ullage.operate.watch.view import view
from ullage.verbs.watch.text import Style, gpu_lines

MIB = 2**20
SERVER = "/usr/bin/nvidia-cuda-mps-server"


@pytest.fixture
def read(tmp_path: Path, clock: Any, make_proc: Any) -> Callable[[Any], Sample]:
    """The first sample of a scripted NVML; process 9 is an MPS server."""
    proc = make_proc()
    proc.add(9, SERVER)
    proc.add(11, "python train.py")
    return lambda nvml: MachineSource(
        nvml,
        environment={"XDG_RUNTIME_DIR": str(tmp_path)},
        proc=proc.directory,
        clock=clock,
    ).read()


def modes(sample: Sample) -> list[Sharing | None]:
    """Of each device."""
    return [sharing_of(device, sample.devices) for device in sample.devices]


@pytest.mark.parametrize(
    ("compute", "mps", "mode"),
    [
        ([], [], Sharing.NONE),
        ([11], [], Sharing.NONE),
        ([11, 12], [], Sharing.TIME_SLICING),
        ([9, 11, 12], [11, 12], Sharing.MPS),  # clients are in both lists
        ([9], [11], Sharing.MPS),
        ([9], [], Sharing.MPS),  # a server that waits for its first client
        ([9, 11, 12, 13], [11, 12], Sharing.MPS_AND_TIME_SLICING),
        ([9, 13], [], Sharing.NONE),  # the server has no client here: 13 is alone
    ],
)
def test_processes_tell_how_a_gpu_is_shared(
    compute: list[int], mps: list[int], mode: Sharing, make_nvml: Any, read: Any
) -> None:
    nvml = make_nvml()
    nvml.gpus[0].compute = [(pid, MIB) for pid in compute]
    nvml.gpus[0].mps = [(pid, MIB) for pid in mps]
    assert modes(read(nvml)) == [mode]


def test_graphics_does_not_count(make_nvml: Any, read: Any) -> None:
    nvml = make_nvml()
    nvml.gpus[0].compute, nvml.gpus[0].graphics = [(11, MIB)], [(30, MIB), (31, MIB)]
    assert modes(read(nvml)) == [Sharing.NONE]


def test_without_a_list_of_processes_nobody_knows(make_nvml: Any, read: Any) -> None:
    nvml = make_nvml()
    nvml.gpus[0].answers["nvmlDeviceGetComputeRunningProcesses"] = -4
    sample = read(nvml)
    assert modes(sample) == [None] and view(sample).gpus[0].sharing is None


def test_a_gpu_in_slices_is_mig_and_each_slice_by_itself(make_nvml: Any, read: Any) -> None:
    nvml = make_nvml(2)
    parts = make_nvml(2).gpus
    for number, part in enumerate(parts):
        part.answers |= {
            "nvmlDeviceGetGpuInstanceId": number + 1, "nvmlDeviceGetComputeInstanceId": 0,
        }  # fmt: skip
    nvml.gpus[0].answers |= {
        "nvmlDeviceGetMigMode": (1, 1), "nvmlDeviceGetMaxMigDeviceCount": 2,
    }  # fmt: skip
    nvml.gpus[0].parts = parts
    nvml.gpus[0].compute = [(11, MIB, 1, 0), (12, MIB, 1, 0), (13, MIB, 2, 0)]
    nvml.gpus[1].compute = [(11, MIB)]
    assert modes(read(nvml)) == [
        Sharing.MIG, Sharing.TIME_SLICING, Sharing.NONE, Sharing.NONE,
    ]  # fmt: skip


@pytest.mark.parametrize("width", [80, 200])
def test_the_line_of_the_gpu_says_it(make_nvml: Any, read: Any, width: int) -> None:
    nvml = make_nvml(3)
    nvml.gpus[0].compute = [(11, MIB), (12, MIB)]
    nvml.gpus[1].compute, nvml.gpus[1].mps = [(9, MIB)], [(11, MIB), (12, MIB)]
    texts = [
        gpu_lines(gpu, position, History(), Style(width))[0].text.plain
        for position, gpu in enumerate(view(read(nvml)).gpus)
    ]
    assert all(len(text) <= width for text in texts)
    assert texts[0].startswith("GPU 0  time-sliced  NV")
    assert texts[1].startswith("GPU 1  MPS  NVIDIA")
    assert texts[2].startswith("GPU 2  NVIDIA")
