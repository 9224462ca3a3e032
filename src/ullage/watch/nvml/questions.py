"""The questions to a GPU, how often each is asked, and the fields of a sample that it fills.

Memory, load and power are asked each time. The rest changes slowly or costs a driver more: once a
second, and what never changes once a minute.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, Final

from ullage.watch.nvml.activity import ACTIVITIES, Activity
from ullage.watch.nvml.library import Trouble, Unknown, trouble_of
from ullage.watch.nvml.rate import CounterRate

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
