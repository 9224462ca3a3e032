"""What a driver says is in the sample; what it does not say is None, with a note."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.rows import each

from ullage.operate.watch.machine import MachineSource
from ullage.operate.watch.sample import MigInstance, Note, ProcessKind, Sample

MIB = 2**20


@pytest.fixture
def make_source(tmp_path: Path, clock: Any) -> Callable[..., MachineSource]:
    """`make_source(nvml, proc)` reads a scripted machine."""

    def make(nvml: Any, proc: Any = None) -> MachineSource:
        directory = tmp_path / "nothing" if proc is None else proc.directory
        return MachineSource(
            nvml, environment={"XDG_RUNTIME_DIR": str(tmp_path)}, proc=directory, clock=clock
        )

    return make


def notes_of(sample: Sample) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The notes by field."""
    return {note.field: (note.reason, note.devices) for note in sample.notes}


def test_every_answer_is_in_the_sample(make_nvml: Any, make_source: Any, clock: Any) -> None:
    nvml = make_nvml()
    source = make_source(nvml)
    source.read()
    clock.now_s += 2
    nvml.gpus[0].counters = [4000, 6000]
    (device,) = source.read().devices
    assert (device.index, device.uuid, device.name) == (0, "GPU-0", "NVIDIA H100 80GB HBM3")
    assert device.total_bytes == 81_920 * MIB
    assert device.used_bytes == 1024 * MIB
    assert device.free_bytes == 80_384 * MIB
    assert device.reserved_bytes == 512 * MIB
    assert (device.gpu_frac, device.memory_frac) == (0.37, 0.12)
    assert (device.temperature_c, device.slowdown_c, device.shutdown_c) == (54, 89, 92)
    assert (device.power_w, device.power_limit_w) == (345.6, 700.0)
    assert (device.sm_clock_mhz, device.sm_clock_max_mhz) == (1755, 1980)
    assert (device.memory_clock_mhz, device.memory_clock_max_mhz) == (2619, 2619)
    assert (device.pcie_tx_bytes_per_s, device.pcie_rx_bytes_per_s) == (2000, 3000)
    assert device.throttle_reasons == {"sw_power_cap", "hw_thermal_slowdown"}
    assert (device.ecc_corrected, device.ecc_uncorrected) == (5, 1)
    assert device.processes == ()
    assert not device.is_lost and device.mig is None


QUESTIONS = {
    "nvmlDeviceGetMemoryInfo": ("total_bytes", "used_bytes", "free_bytes", "reserved_bytes"),
    "nvmlDeviceGetUtilizationRates": ("gpu_frac", "memory_frac"),
    "nvmlDeviceGetPowerUsage": ("power_w",),
    "nvmlDeviceGetTemperature": ("temperature_c",),
    "nvmlDeviceGetTemperatureThreshold": ("slowdown_c", "shutdown_c"),
    "nvmlDeviceGetClockInfo": ("sm_clock_mhz", "memory_clock_mhz"),
    "nvmlDeviceGetMaxClockInfo": ("sm_clock_max_mhz", "memory_clock_max_mhz"),
    "nvmlDeviceGetTotalEccErrors": ("ecc_corrected", "ecc_uncorrected"),
    "nvmlDeviceGetEnforcedPowerLimit": ("power_limit_w",),
    "nvmlDeviceGetComputeRunningProcesses": ("processes",),
}


@each(("name", "code"), product(QUESTIONS, [3, 4, 10, 13, 999]))
def test_what_is_refused_is_none_with_its_reason(
    name: str, code: int, make_nvml: Any, make_source: Any
) -> None:
    nvml = make_nvml(2)
    nvml.gpus[1].answers[name] = -code
    sample = make_source(nvml).read()
    whole, lacking = sample.devices
    for field in QUESTIONS[name]:
        assert getattr(whole, field) is not None
        assert getattr(lacking, field) is None
        reason, devices = notes_of(sample)[field]
        assert devices == (1,) and reason
    others = {field for name in QUESTIONS for field in QUESTIONS[name]} - set(QUESTIONS[name])
    assert all(getattr(lacking, field) is not None for field in others)


def test_a_lasting_refusal_is_asked_again_after_a_minute(
    make_nvml: Any, make_source: Any, clock: Any
) -> None:
    nvml = make_nvml()
    nvml.gpus[0].answers["nvmlDeviceGetPowerUsage"] = -3
    source = make_source(nvml)
    for _ in range(590):
        source.read()
        clock.now_s += 0.1
    assert nvml.calls["nvmlDeviceGetPowerUsage"] == 1
    del nvml.gpus[0].answers["nvmlDeviceGetPowerUsage"]
    clock.now_s += 2
    sample = source.read()
    assert sample.devices[0].power_w == 345.6
    assert "power_w" not in notes_of(sample)


def test_a_passing_error_is_asked_again_at_once(make_nvml: Any, make_source: Any) -> None:
    nvml = make_nvml()
    source = make_source(nvml)
    nvml.gpus[0].answers["nvmlDeviceGetPowerUsage"] = -10
    assert source.read().devices[0].power_w is None
    del nvml.gpus[0].answers["nvmlDeviceGetPowerUsage"]
    assert source.read().devices[0].power_w == 345.6


def test_an_older_driver_has_the_older_names(make_nvml: Any, make_source: Any) -> None:
    nvml = make_nvml()
    memory = SimpleNamespace(total=100, used=30, free=70)

    def memory_info(*version: int) -> object:
        return -25 if version else memory

    nvml.gpus[0].answers |= {
        "nvmlDeviceGetMemoryInfo": memory_info,
        "nvmlDeviceGetCurrentClocksEventReasons": -13,
        "nvmlDeviceGetFieldValues": -3,
    }
    sample = make_source(nvml).read()
    (device,) = sample.devices
    assert (device.total_bytes, device.used_bytes, device.free_bytes) == (100, 30, 70)
    assert device.reserved_bytes is None and "reserved_bytes" in notes_of(sample)
    assert device.throttle_reasons == {"sw_power_cap"}
    assert (device.pcie_tx_bytes_per_s, device.pcie_rx_bytes_per_s) == (102_400, 204_800)


def test_a_counter_that_jumps_back_gives_no_rate(
    make_nvml: Any, make_source: Any, clock: Any
) -> None:
    nvml = make_nvml()
    source = make_source(nvml)
    rates = []
    for count in (5000, 6000, 100, 1100):
        nvml.gpus[0].counters = [count, count]
        sample = source.read()
        rates.append(sample.devices[0].pcie_tx_bytes_per_s)
        if count == 100:
            assert notes_of(sample)["pcie_tx_bytes_per_s"] == ("the counter jumped back", (0,))
        clock.now_s += 1
    assert rates == [None, 1000, None, 1000]


def test_a_gpu_that_falls_off_the_bus_is_lost_and_may_come_back(
    make_nvml: Any, make_source: Any, clock: Any
) -> None:
    nvml = make_nvml(2)
    source = make_source(nvml)
    source.read()
    nvml.gpus[1].error = 15
    sample = source.read()
    well, lost = sample.devices
    assert not well.is_lost and well.used_bytes is not None
    assert lost.is_lost and lost.used_bytes is None and lost.processes is None
    assert (lost.index, lost.uuid, lost.name) == (1, "GPU-1", "NVIDIA H100 80GB HBM3")
    assert Note("devices", "the GPU is lost: it fell off the bus", (1,)) in sample.notes
    nvml.gpus[1].error = None
    clock.now_s += 11
    sample = source.read()
    assert not sample.devices[1].is_lost and "devices" not in notes_of(sample)


def test_a_gpu_that_was_lost_before_has_no_name(make_nvml: Any, make_source: Any) -> None:
    nvml = make_nvml(2)
    nvml.gpus[0].error = 15
    lost, well = make_source(nvml).read().devices
    assert lost.is_lost and lost.name is None and lost.uuid is None
    assert well.name is not None


def test_a_driver_that_is_reloaded_is_opened_again(
    make_nvml: Any, make_source: Any, clock: Any
) -> None:
    nvml = make_nvml()
    source = make_source(nvml)
    source.read()
    nvml.error = 1  # until nvmlInit is called
    assert source.read().devices == ()
    assert nvml.inits == 1
    clock.now_s += 0.1
    assert source.read().devices[0].used_bytes == 1024 * MIB


def test_a_driver_that_is_gone_is_said_and_waited_for(
    make_nvml: Any, make_source: Any, clock: Any
) -> None:
    nvml = make_nvml()
    source = make_source(nvml)
    source.read()
    nvml.error = 1
    source.read()
    nvml.error = 9
    sample = source.read()
    assert sample.devices == ()
    assert notes_of(sample)["devices"] == ("the NVIDIA driver is not loaded", ())
    nvml.error = None
    assert len(source.read().devices) == 1


def test_processes_say_who_they_are(make_nvml: Any, make_source: Any, make_proc: Any) -> None:
    nvml, proc = make_nvml(), make_proc()
    container, pod = "8f" * 32, "0d5e9cd8-5a2c-4f4e-9c1e-0123456789ab"
    slice_ = f"kubepods-pod{pod.replace('-', '_')}.slice"
    group = f"0::/kubepods.slice/{slice_}/cri-containerd-{container}.scope\n"
    proc.add(11, "/usr/bin/python3.11 -X dev /srv/train.py --lr 3", group)
    proc.add(12, "python -m vllm.server", "0::/system.slice/slurmstepd.scope/job_77/step_0\n")
    proc.add(13, "/opt/bin/Xorg", f"12:devices:/docker/{container}\n")
    nvml.gpus[0].compute = [(11, 300), (12, None), (14, 5)]
    nvml.gpus[0].graphics = [(11, 200), (13, 100)]
    nvml.gpus[0].mps = [(12, 70)]
    nvml.gpus[0].loads = [(11, 5, 30), (11, 9, 60), (12, 9, 250)]
    sample = make_source(nvml, proc).read()
    train, vllm, server, outside = sample.devices[0].processes or ()
    assert (train.name, train.kind, train.used_bytes) == ("train.py", ProcessKind.COMPUTE, 300)
    assert (train.container, train.pod, train.sm_frac) == (container, pod, 0.6)
    assert (vllm.name, vllm.kind, vllm.used_bytes) == ("vllm.server", ProcessKind.MPS, 70)
    assert (vllm.slurm_job, vllm.container, vllm.sm_frac) == ("77", None, 0.0)
    assert (server.name, server.kind, server.container) == (
        "Xorg", ProcessKind.GRAPHICS, container,
    )  # fmt: skip
    assert not outside.is_own and outside.name is None and outside.used_bytes == 5
    assert "outside this container" in notes_of(sample)["processes"][0]


def test_in_a_container_a_number_of_the_host_is_not_taken_for_our_own(
    make_nvml: Any, make_source: Any, make_proc: Any
) -> None:
    nvml, proc = make_nvml(), make_proc(is_first=False)
    proc.add(11, "sshd")
    proc.add(12, "python train.py", opens="/dev/nvidia0")
    proc.add(os.getpid(), "python watch.py")
    nvml.gpus[0].compute = [(11, 1), (12, 2), (os.getpid(), 3)]
    processes = make_source(nvml, proc).read().devices[0].processes or ()
    names = {process.pid: (process.name, process.is_own) for process in processes}
    assert names == {
        11: (None, False), 12: ("train.py", True), os.getpid(): ("watch.py", True),
    }  # fmt: skip


def test_a_container_without_processes_has_none(make_nvml: Any, make_source: Any) -> None:
    assert make_source(make_nvml()).read().devices[0].processes == ()


def test_the_load_of_processes_may_be_refused(make_nvml: Any, make_source: Any) -> None:
    nvml = make_nvml()
    nvml.gpus[0].compute = [(11, None)]
    nvml.gpus[0].answers["loads"] = 3
    sample = make_source(nvml).read()
    (process,) = sample.devices[0].processes or ()
    assert process.sm_frac is None and process.used_bytes is None
    notes = notes_of(sample)
    assert notes["sm_frac"] == ("not supported by this GPU or its driver", (0,))
    assert notes["used_bytes of processes"][1] == (0,)


def test_mig_devices_have_their_own_memory_and_processes(
    make_nvml: Any, make_source: Any, make_proc: Any
) -> None:
    nvml, proc = make_nvml(), make_proc()
    proc.add(11, "a")
    proc.add(12, "b")
    gpu, part = nvml.gpus[0], make_nvml().gpus[0]
    part.uuid = "MIG-1"
    part.answers = {
        "nvmlDeviceGetGpuInstanceId": 1,
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=10, used=4, free=6, reserved=0),
        "nvmlDeviceGetUtilizationRates": -3,
    }
    gpu.answers |= {"nvmlDeviceGetMigMode": (1, 1), "nvmlDeviceGetUtilizationRates": -3}
    gpu.parts = [None, part, None, None, None, None, None]
    gpu.compute = [(11, 100, 1, 0), (12, 200)]
    whole, slice_ = make_source(nvml, proc).read().devices
    assert whole.mig is None and [each.pid for each in whole.processes or ()] == [12]
    assert slice_.mig == MigInstance("GPU-0", 1, 0)
    assert (slice_.uuid, slice_.total_bytes, slice_.gpu_frac) == ("MIG-1", 10, None)
    assert [each.pid for each in slice_.processes or ()] == [11]


def test_thirty_processes_come_and_go_on_eight_gpus(
    make_nvml: Any, make_source: Any, make_proc: Any, clock: Any
) -> None:
    nvml, proc = make_nvml(8), make_proc()
    for pid in range(100, 160):
        proc.add(pid, f"job{pid}")
    source = make_source(nvml, proc)
    for turn in range(60):
        alive = range(100 + turn // 2, 130 + turn // 2)
        for index, gpu in enumerate(nvml.gpus):
            gpu.compute = [(pid, pid * MIB) for pid in alive if pid % 8 == index]
        clock.now_s += 2
        sample = source.read()
        for index, device in enumerate(sample.devices):
            pairs = {(each.pid, each.name, each.used_bytes) for each in device.processes or ()}
            assert pairs == {
                (pid, f"job{pid}", pid * MIB) for pid in alive if pid % 8 == index
            }  # fmt: skip


def test_a_thousand_processes(make_nvml: Any, make_source: Any, make_proc: Any) -> None:
    nvml, proc = make_nvml(), make_proc()
    for pid in range(1000, 2000):
        proc.add(pid, "python worker.py")
    nvml.gpus[0].compute = [(pid, MIB) for pid in range(1000, 2000)]
    processes = make_source(nvml, proc).read().devices[0].processes or ()
    assert len(processes) == 1000
    assert all(process.name == "worker.py" for process in processes)


def test_processes_are_listed_once_a_second(make_nvml: Any, make_source: Any, clock: Any) -> None:
    nvml = make_nvml(10)
    source = make_source(nvml)
    for _ in range(100):
        source.read()
        clock.now_s += 0.1
    calls = nvml.calls
    assert calls["nvmlDeviceGetMemoryInfo"] == 1000
    assert calls["nvmlDeviceGetComputeRunningProcesses"] <= 110
    assert calls["nvmlDeviceGetTemperature"] <= 110
    assert calls["nvmlDeviceGetTemperatureThreshold"] == 20
    assert calls["nvmlDeviceGetName"] == 10


def test_a_list_that_grows_while_it_is_read_is_read_again(make_nvml: Any, make_source: Any) -> None:
    nvml = make_nvml()
    answers = iter([7, 7, 0])
    ask = nvml.nvmlDeviceGetComputeRunningProcesses

    def grow(gpu: Any) -> Any:
        code = next(answers)
        if code:
            raise nvml.NVMLError(code)
        return ask(gpu)

    nvml.nvmlDeviceGetComputeRunningProcesses = grow
    nvml.gpus[0].compute = [(1, 1)]
    assert len(make_source(nvml).read().devices[0].processes or ()) == 1


def test_a_new_gpu_is_found(make_nvml: Any, make_source: Any, clock: Any) -> None:
    nvml = make_nvml(1)
    source = make_source(nvml)
    assert len(source.read().devices) == 1
    nvml.gpus.append(make_nvml(1).gpus[0])
    clock.now_s += 11
    assert len(source.read().devices) == 2


def test_notes_are_the_same_object_as_long_as_nothing_changes(
    make_nvml: Any, make_source: Any
) -> None:
    nvml = make_nvml(3)
    for gpu in nvml.gpus:
        gpu.answers["nvmlDeviceGetTotalEccErrors"] = -3
    source = make_source(nvml)
    first, second = source.read(), source.read()
    assert first.notes is second.notes
    assert notes_of(first)["ecc_corrected"][1] == (0, 1, 2)


def test_what_has_not_changed_is_the_same_object(
    make_nvml: Any, make_source: Any, make_proc: Any, clock: Any
) -> None:
    """Whoever keeps what was made of a sample sees at a glance that it still holds."""
    nvml, proc = make_nvml(2), make_proc()
    proc.add(100, "python train.py")
    for gpu in nvml.gpus:
        gpu.compute = [(100, MIB)]
    source = make_source(nvml, proc)
    for _ in range(20):  # rates need two readings
        source.read()
        clock.now_s += 0.1
    first = source.read().devices
    for _ in range(20):  # the processes are listed again, and are as before
        clock.now_s += 0.1
        second = source.read().devices
    assert all(device is before for device, before in zip(second, first, strict=True))
    nvml.gpus[1].answers["nvmlDeviceGetPowerUsage"] = 111_000
    nvml.gpus[0].compute = [(100, 2 * MIB)]
    clock.now_s += 1.5
    third = source.read().devices
    assert third[0] is not first[0] and third[1] is not first[1]
    (process,) = third[0].processes or ()
    assert process.used_bytes == 2 * MIB and third[1].power_w == 111.0
    assert third[1].processes is first[1].processes


def test_questions_that_are_refused_leave_nothing_for_the_garbage_collector(
    make_nvml: Any, make_source: Any, clock: Any
) -> None:
    """An error that is kept must not keep the frames that it went through."""
    nvml = make_nvml(4)
    source = make_source(nvml)
    source.read()
    gc.collect()
    gc.freeze()  # what other tests left is not counted, whenever it is let go
    gc.disable()
    try:
        for _ in range(200):
            clock.now_s += 1.0
            source.read()
        assert gc.collect() < 20
    finally:
        gc.enable()
        gc.unfreeze()
