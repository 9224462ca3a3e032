"""The questions to a GPU, how often each is asked, and the fields of a sample that it fills.

Memory, load and power are asked each time. The rest changes slowly or costs a driver more: once a
second, and what never changes once a minute.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, Final

from ullage.operate.watch.nvml.library import NOT_SUPPORTED, Trouble, Unknown, code_of, trouble_of

# How busy a GPU's multiprocessors and memory are, by NVML's GPM: Hopper and newer.

# NVML_GPM_METRIC_SM_UTIL, _SM_OCCUPANCY and _DRAM_BW_UTIL, in percent.
ACTIVITIES: Final = {"sm_active_frac": 2, "sm_occupancy_frac": 3, "dram_active_frac": 10}
# Three questions are asked at once; the driver is asked once for all.
_MIN_PAUSE_S: Final = 0.5


class Activity:
    """The activity of one GPU between the last two samples."""

    def __init__(self, nvml: ModuleType, handle: object, clock: Callable[[], float]) -> None:
        self._nvml, self._handle, self._clock = nvml, handle, clock
        self._before: _Sample | None = None
        self._spare: _Sample | None = None
        self._request: Any = None
        self._due_s = -math.inf
        self._answer: dict[str, float | Exception] | Exception = Unknown("")

    def ask(self, field: str) -> tuple[float]:
        """One of ACTIVITIES, as a fraction.

        Raises:
            NVMLError: the GPU or its driver has no GPM, or does not answer.
            Unknown: there is one sample yet.
        """
        now_s = self._clock()
        if now_s >= self._due_s:
            self._due_s = now_s + _MIN_PAUSE_S
            try:
                self._answer = self._read()
            except (self._nvml.NVMLError, Unknown) as error:
                self._answer = self._without_frames(error)
        answer = self._answer if isinstance(self._answer, Exception) else self._answer[field]
        if isinstance(answer, Exception):
            raise self._without_frames(answer)
        return (answer,)

    def _without_frames(self, error: Exception) -> Exception:
        """The same error anew. One that was raised refers to the frames that it went through, and
        one that is kept and raised again, to itself: only the garbage collector would free them.
        """
        if isinstance(error, Unknown):
            return Unknown(str(error))
        again: Exception = self._nvml.NVMLError(code_of(error))
        return again

    def _read(self) -> dict[str, float | Exception]:
        nvml = self._nvml
        if self._request is None:
            self._open()
        latest = self._spare or _Sample(nvml)
        before, self._before, self._spare = self._before, None, latest
        nvml.nvmlGpmSampleGet(self._handle, latest.pointer)  # refused: the next reading is a first
        self._before, self._spare = latest, before
        if before is None:
            raise Unknown("a rate needs two readings")
        request = self._request
        request.sample1, request.sample2 = before.pointer, latest.pointer
        nvml.nvmlGpmMetricsGet(request)
        return {
            field: self._value(request.metrics[place]) for place, field in enumerate(ACTIVITIES)
        }

    def _open(self) -> None:
        """Asks whether there is GPM at all, and makes what questions need."""
        nvml = self._nvml
        if not nvml.nvmlGpmQueryDeviceSupport(self._handle).isSupportedDevice:
            raise nvml.NVMLError(NOT_SUPPORTED)
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version, request.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(ACTIVITIES)
        for place, number in enumerate(ACTIVITIES.values()):
            request.metrics[place].metricId = number
        self._request = request

    def _value(self, metric: Any) -> float | Exception:  # noqa: ANN401 - a structure of pynvml
        if metric.nvmlReturn:
            error: Exception = self._nvml.NVMLError(metric.nvmlReturn)
            return error
        if not 0.0 <= metric.value <= 100.5:  # NaN too
            return Unknown(f"the driver says {metric.value:g} %")
        return min(float(metric.value), 100.0) / 100


class _Sample:
    """The driver's memory for the counters of one moment; it is given back with the object."""

    def __init__(self, nvml: ModuleType) -> None:
        self._sample = nvml.nvmlGpmSampleAlloc()
        weakref.finalize(self, _free, nvml, self._sample).atexit = False

    @property
    def pointer(self) -> Any:  # noqa: ANN401 - of pynvml
        """The pointer that NVML's functions take."""
        return self._sample


def _free(nvml: ModuleType, sample: object) -> None:
    with contextlib.suppress(nvml.NVMLError):  # NVML was closed, and has freed it
        nvml.nvmlGpmSampleFree(sample)


# The rate of a counter that only grows, and of one that does not.


class CounterRate:
    """The growth of one counter between its last two readings."""

    def __init__(self) -> None:
        self._count: int | None = None
        self._time_s = 0.0

    def update(self, count: int, now_s: float) -> int:
        """The counter's growth in a second since the last call.

        Raises:
            Unknown: there was no reading before, or the counter is lower than it was (the driver
                was reloaded, or it wrapped): the growth is not known, and is not guessed.
        """
        before, before_s = self._count, self._time_s
        self._count, self._time_s = count, now_s
        if before is None or now_s <= before_s:
            raise Unknown("a rate needs two readings")
        if count < before:
            raise Unknown("the counter jumped back")
        return round((count - before) / (now_s - before_s))


Answer = tuple[Any, ...]
EACH_TIME: Final = 0.0
EACH_SECOND: Final = 1.0
EACH_MINUTE: Final = 60.0
# PCIe's rate costs 20 ms where the driver has no counter: it measures while the caller waits.
EACH_TEN_SECONDS: Final = 10.0

# Bits of nvmlClocksEventReasons; the lowest says that the GPU is idle, which is no throttling.
_THROTTLE_REASONS: Final = {
    0x2: "clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
_IDLE: Final = 0x1
_SM, _MEMORY = 1, 2
_KIB: Final = 1024
# The structures of pynvml read their fields in Python, to decode texts: most of a reading's cost.
_read = object.__getattribute__


@dataclass(frozen=True, slots=True)
class Question:
    """`ask` answers a value for each of `fields`, and is called once in `period_s` seconds."""

    fields: tuple[str, ...]
    period_s: float
    ask: Callable[[], Answer]


def questions_of(nvml: ModuleType, handle: object, clock: Callable[[], float]) -> list[Question]:
    """The questions about one GPU or MIG device; those asked each time come first."""
    memory, pcie = _Memory(nvml, handle), _Pcie(nvml, handle, clock)
    activity = Activity(nvml, handle, clock)
    ecc, threshold = nvml.nvmlDeviceGetTotalEccErrors, nvml.nvmlDeviceGetTemperatureThreshold

    def ask(name: str, *arguments: int) -> Callable[[], Answer]:
        function = getattr(nvml, name)
        return lambda: (function(handle, *arguments),)

    def watts(name: str) -> Callable[[], Answer]:
        function = getattr(nvml, name)
        return lambda: (function(handle) / 1000,)

    def load() -> Answer:
        rates = nvml.nvmlDeviceGetUtilizationRates(handle)
        return _fraction(_read(rates, "gpu")), _fraction(_read(rates, "memory"))

    return [
        Question(
            ("total_bytes", "used_bytes", "free_bytes", "reserved_bytes"), EACH_TIME, memory.ask
        ),
        Question(("gpu_frac", "memory_frac"), EACH_TIME, load),
        Question(("power_w",), EACH_TIME, watts("nvmlDeviceGetPowerUsage")),
        *(Question((field,), EACH_SECOND, partial(activity.ask, field)) for field in ACTIVITIES),
        Question(("temperature_c",), EACH_SECOND, ask("nvmlDeviceGetTemperature", 0)),
        Question(("sm_clock_mhz",), EACH_SECOND, ask("nvmlDeviceGetClockInfo", _SM)),
        Question(("memory_clock_mhz",), EACH_SECOND, ask("nvmlDeviceGetClockInfo", _MEMORY)),
        Question(("throttle_reasons",), EACH_SECOND, lambda: (_throttling(nvml, handle),)),
        Question(("ecc_corrected",), EACH_SECOND, lambda: (ecc(handle, 0, 0),)),
        Question(("ecc_uncorrected",), EACH_SECOND, lambda: (ecc(handle, 1, 0),)),
        Question(("pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s"), EACH_SECOND, pcie.ask),
        Question(("sm_clock_max_mhz",), EACH_MINUTE, ask("nvmlDeviceGetMaxClockInfo", _SM)),
        Question(("memory_clock_max_mhz",), EACH_MINUTE, ask("nvmlDeviceGetMaxClockInfo", _MEMORY)),
        Question(("shutdown_c",), EACH_MINUTE, lambda: (threshold(handle, 0),)),
        Question(("slowdown_c",), EACH_MINUTE, lambda: (threshold(handle, 1),)),
        Question(("power_limit_w",), EACH_MINUTE, watts("nvmlDeviceGetEnforcedPowerLimit")),
    ]


def _fraction(percent: int) -> float:
    # Some drivers answer with a number beyond 100 while a GPU is being reset.
    if not 0 <= percent <= 100:
        raise Unknown(f"the driver says {percent} %")
    return percent / 100


def _throttling(nvml: ModuleType, handle: object) -> frozenset[str]:
    """The names of the reasons for which the clocks are lower than they could be."""
    try:
        bits = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    except nvml.NVMLError as error:
        if trouble_of(error) is not Trouble.LASTING:
            raise
        bits = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)  # its name before CUDA 12.2
    names = {name for bit, name in _THROTTLE_REASONS.items() if bits & bit}
    rest = bits & ~_IDLE & ~sum(_THROTTLE_REASONS)
    return frozenset(names | ({f"reason_{rest:#x}"} if rest else set()))


class _Memory:
    """Memory with the driver's own part; without it where the driver is too old to tell."""

    def __init__(self, nvml: ModuleType, handle: object) -> None:
        self._nvml, self._handle = nvml, handle
        self._has_reserved = True

    def ask(self) -> Answer:
        if self._has_reserved:
            try:
                memory = self._nvml.nvmlDeviceGetMemoryInfo(self._handle, self._nvml.nvmlMemory_v2)
                return (
                    _read(memory, "total"),
                    _read(memory, "used"),
                    _read(memory, "free"),
                    _read(memory, "reserved"),
                )
            except self._nvml.NVMLError as error:
                if trouble_of(error) is not Trouble.LASTING:
                    raise
                self._has_reserved = False
        memory = self._nvml.nvmlDeviceGetMemoryInfo(self._handle)
        return _read(memory, "total"), _read(memory, "used"), _read(memory, "free"), None


class _Pcie:
    """Bytes over PCIe in a second: from the driver's counters, else as the driver measures them."""

    def __init__(self, nvml: ModuleType, handle: object, clock: Callable[[], float]) -> None:
        self._nvml, self._handle, self._clock = nvml, handle, clock
        self._sent, self._received = CounterRate(), CounterRate()
        self._has_counters = True
        self._due_s, self._rates = 0.0, (0, 0)

    def ask(self) -> Answer:
        if self._has_counters:
            try:
                sent, received = self._read_counters()
            except self._nvml.NVMLError as error:
                if trouble_of(error) is not Trouble.LASTING:
                    raise
                self._has_counters = False
            else:
                return self._rate(sent, received)
        now_s = self._clock()
        if now_s >= self._due_s:
            ask = self._nvml.nvmlDeviceGetPcieThroughput
            self._rates = ask(self._handle, 0) * _KIB, ask(self._handle, 1) * _KIB
            self._due_s = now_s + EACH_TEN_SECONDS
        return self._rates

    def _rate(self, sent: int, received: int) -> Answer:
        now_s, rates, unknown = self._clock(), [], None
        for counter, count in ((self._sent, sent), (self._received, received)):
            try:  # both are brought up to date, even if one jumped back
                rates.append(counter.update(count, now_s))
            except Unknown as error:
                unknown = error
        if unknown is not None:
            raise unknown
        return tuple(rates)

    def _read_counters(self) -> tuple[int, int]:
        nvml = self._nvml
        numbers = [nvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, nvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES]
        values = nvml.nvmlDeviceGetFieldValues(self._handle, numbers)
        for value in values:
            if value.nvmlReturn:
                raise nvml.NVMLError(value.nvmlReturn)
        return values[0].value.ullVal, values[1].value.ullVal
