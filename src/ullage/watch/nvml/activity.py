"""How busy a GPU's multiprocessors and memory are, by NVML's GPM: Hopper and newer.

NVML's utilisation says that some kernel ran. GPM compares two samples of the GPU's own counters,
as DCGM's profiling metrics do: which share of the multiprocessors was busy, how many of the
possible warps were there, and which share of the memory's bandwidth was used.

activity = Activity(nvml, handle, clock)
activity.ask("sm_active_frac")        # (0.41,)
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from ullage.watch.nvml.library import NOT_SUPPORTED, Unknown, code_of

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
