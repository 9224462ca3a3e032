"""A scripted NVML, a made-up /proc, and a clock that only the test moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pynvml
import pytest

from ullage.operate.watch.machine import MachineSource
from ullage.operate.watch.sample import Sample

MIB = 2**20
GPU_NAME = "NVIDIA H100 80GB HBM3"


@dataclass(slots=True)
class Gpu:
    """What a scripted GPU answers; an exception among the answers is raised instead.

    `processes` are (pid, bytes) or (pid, bytes, GPU instance, compute instance). `activity` are
    the three figures of GPM in percent, a negative one the error that it is refused with.
    """

    uuid: str
    answers: dict[str, Any] = field(default_factory=dict)
    compute: list[tuple[int, ...]] = field(default_factory=list)
    graphics: list[tuple[int, ...]] = field(default_factory=list)
    mps: list[tuple[int, ...]] = field(default_factory=list)
    loads: list[tuple[int, int, int]] = field(default_factory=list)
    counters: list[int] = field(default_factory=lambda: [0, 0])
    activity: tuple[float, float, float] | None = None
    parts: list[Any] = field(default_factory=list)
    error: int | None = None


class ScriptedNvml(ModuleType):
    """The module pynvml with the functions that ullage calls, about GPUs of the test's own."""

    def __init__(self, count: int = 1) -> None:
        super().__init__("pynvml")
        self.gpus = [Gpu(f"GPU-{index}") for index in range(count)]
        self.calls: dict[str, int] = {}
        self.error: int | None = None
        self.inits = 0
        self.num_samples = 0
        for name, value in DEFAULTS.items():
            setattr(self, name, self._question(name, value))
        for name, key in LISTS.items():
            setattr(self, name, self._list(name, key))

    def __getattr__(self, name: str) -> Any:
        return getattr(pynvml, name)

    def _check(self, name: str, gpu: Gpu | None) -> None:
        self.calls[name] = self.calls.get(name, 0) + 1
        code = self.error or (gpu.error if gpu is not None else None)
        if code:
            raise pynvml.NVMLError(code)

    def _question(self, name: str, value: Any) -> Callable[..., Any]:
        def ask(gpu: Gpu, *arguments: Any) -> Any:
            self._check(name, gpu)
            answer = gpu.answers.get(name, value)
            answer = answer(*arguments) if callable(answer) else answer
            if isinstance(answer, int) and answer < 0:
                raise pynvml.NVMLError(-answer)
            return answer

        return ask

    def _list(self, name: str, key: str) -> Callable[..., Any]:
        def ask(gpu: Gpu) -> list[Any]:
            self._check(name, gpu)
            code = gpu.answers.get(name, 0)
            if code:
                raise pynvml.NVMLError(-code)
            return [_process(*row) for row in getattr(gpu, key)]

        return ask

    def nvmlInit(self) -> None:
        self.inits += 1
        if self.error and self.error != 1:
            raise pynvml.NVMLError(self.error)
        self.error = None

    def nvmlShutdown(self) -> None:
        self._check("nvmlShutdown", None)

    def nvmlDeviceGetCount(self) -> int:
        self._check("nvmlDeviceGetCount", None)
        return len(self.gpus)

    def nvmlSystemGetDriverVersion(self) -> str:
        self._check("nvmlSystemGetDriverVersion", None)
        return "580.00.00"

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:
        gpu = self.gpus[index]
        self._check("nvmlDeviceGetHandleByIndex", gpu)
        return gpu

    def nvmlDeviceGetUUID(self, gpu: Gpu) -> str:
        self._check("nvmlDeviceGetUUID", gpu)
        return gpu.uuid

    def nvmlDeviceGetFieldValues(self, gpu: Gpu, numbers: list[int]) -> list[Any]:
        self._check("nvmlDeviceGetFieldValues", gpu)
        code = gpu.answers.get("nvmlDeviceGetFieldValues", 0)
        return [
            SimpleNamespace(nvmlReturn=-code, value=SimpleNamespace(ullVal=count))
            for _, count in zip(numbers, gpu.counters, strict=True)
        ]

    def nvmlDeviceGetProcessUtilization(self, gpu: Gpu, since_us: int) -> list[Any]:
        self._check("nvmlDeviceGetProcessUtilization", gpu)
        rows = [row for row in gpu.loads if row[1] > since_us]
        if not rows:
            raise pynvml.NVMLError(gpu.answers.get("loads", 6))
        return [SimpleNamespace(pid=pid, timeStamp=us, smUtil=load) for pid, us, load in rows]

    def nvmlGpmQueryDeviceSupport(self, gpu: Gpu) -> Any:
        self._check("nvmlGpmQueryDeviceSupport", gpu)
        return SimpleNamespace(isSupportedDevice=int(gpu.activity is not None))

    def nvmlGpmSampleAlloc(self) -> Any:
        self.num_samples += 1
        return SimpleNamespace(gpu=None)

    def nvmlGpmSampleFree(self, _sample: Any) -> None:
        self.num_samples -= 1

    def nvmlGpmSampleGet(self, gpu: Gpu, sample: Any) -> None:
        self._check("nvmlGpmSampleGet", gpu)
        code = gpu.answers.get("nvmlGpmSampleGet", 0)
        if code:
            raise pynvml.NVMLError(-code)
        sample.gpu = gpu

    def c_nvmlGpmMetricsGet_t(self) -> Any:
        return SimpleNamespace(metrics=[SimpleNamespace() for _ in range(3)])

    def nvmlGpmMetricsGet(self, request: Any) -> None:
        first, second = request.sample1, request.sample2
        assert first is not second and first.gpu is second.gpu is not None
        assert [metric.metricId for metric in request.metrics] == [2, 3, 10]
        for metric, value in zip(request.metrics, second.gpu.activity, strict=True):
            is_refused = value < 0
            metric.nvmlReturn, metric.value = (int(-value), 0.0) if is_refused else (0, value)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: Gpu, number: int) -> Gpu:
        self._check("nvmlDeviceGetMigDeviceHandleByIndex", gpu)
        part: Gpu | None = gpu.parts[number]
        if part is None:
            raise pynvml.NVMLError(6)
        return part


def _process(pid: int, size: int | None, gi: int = 2**32 - 1, ci: int = 2**32 - 1) -> Any:
    return SimpleNamespace(pid=pid, usedGpuMemory=size, gpuInstanceId=gi, computeInstanceId=ci)


MEMORY = SimpleNamespace(total=81_920 * MIB, used=1024 * MIB, free=80_384 * MIB, reserved=512 * MIB)
DEFAULTS: dict[str, Any] = {
    "nvmlDeviceGetName": GPU_NAME,
    "nvmlDeviceGetMemoryInfo": MEMORY,
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=37, memory=12),
    "nvmlDeviceGetPowerUsage": 345_600,
    "nvmlDeviceGetTemperature": 54,
    "nvmlDeviceGetTemperatureThreshold": lambda which: (92, 89)[which],
    "nvmlDeviceGetClockInfo": lambda which: {1: 1755, 2: 2619}[which],
    "nvmlDeviceGetMaxClockInfo": lambda which: {1: 1980, 2: 2619}[which],
    "nvmlDeviceGetCurrentClocksEventReasons": 0x1 | 0x4 | 0x40,
    "nvmlDeviceGetCurrentClocksThrottleReasons": 0x4,
    "nvmlDeviceGetTotalEccErrors": lambda kind, _counter: (5, 1)[kind],
    "nvmlDeviceGetPcieThroughput": lambda which: (100, 200)[which],
    "nvmlDeviceGetEnforcedPowerLimit": 700_000,
    "nvmlDeviceGetMigMode": (0, 0),
    "nvmlDeviceGetMaxMigDeviceCount": 7,
    "nvmlDeviceGetGpuInstanceId": 0,
    "nvmlDeviceGetComputeInstanceId": 0,
}
LISTS = {
    "nvmlDeviceGetComputeRunningProcesses": "compute",
    "nvmlDeviceGetGraphicsRunningProcesses": "graphics",
    "nvmlDeviceGetMPSComputeRunningProcesses": "mps",
}


class Clock:
    """Seconds that only the test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Proc:
    """A made-up /proc."""

    def __init__(self, directory: Path, *, is_first: bool = True) -> None:
        self.directory = directory
        (directory / "self/ns").mkdir(parents=True)
        number = 4026531836 if is_first else 4026532201
        (directory / "self/ns/pid").symlink_to(f"pid:[{number}]")

    def add(self, pid: int, command: str, cgroup: str = "", opens: str | None = None) -> None:
        """A process; `opens` is a file that it has open."""
        directory = self.directory / str(pid)
        (directory / "fd").mkdir(parents=True)
        (directory / "cmdline").write_bytes(command.replace(" ", "\0").encode() + b"\0")
        (directory / "cgroup").write_text(cgroup)
        if opens:
            (directory / "fd/3").symlink_to(opens)


@pytest.fixture
def clock() -> Clock:
    """A clock that only the test moves."""
    return Clock()


@pytest.fixture
def make_nvml() -> type[ScriptedNvml]:
    """`make_nvml(8)` is a scripted NVML with that many GPUs."""
    return ScriptedNvml


@pytest.fixture
def make_proc(tmp_path: Path) -> Callable[..., Proc]:
    """`make_proc(is_first=False)` is the /proc of a container."""
    return lambda **options: Proc(tmp_path / "proc", **options)


@pytest.fixture
def make_samples(tmp_path: Path, clock: Clock) -> Callable[[int], Iterator[Sample]]:
    """`make_samples(40)`: of 8 GPUs, 30 processes that come and go, at 10 Hz."""

    def make(count: int) -> Iterator[Sample]:
        nvml = ScriptedNvml(8)
        source = MachineSource(
            nvml, environment={"XDG_RUNTIME_DIR": str(tmp_path)}, proc=tmp_path, clock=clock
        )
        for turn in range(count):
            for index, gpu in enumerate(nvml.gpus):
                gpu.compute = [
                    (pid, pid * MIB) for pid in range(turn, turn + 30) if pid % 8 == index
                ]
                gpu.counters = [turn * 1000, turn * 2000]
                gpu.answers["nvmlDeviceGetPowerUsage"] = 400_000 + turn * index
            clock.now_s += 0.1
            yield source.read()

    return make
