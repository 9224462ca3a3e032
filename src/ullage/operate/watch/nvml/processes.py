"""The processes on a GPU, as NVML lists them, with who they are, as /proc tells.

ProcessReader(nvml, handle, identities).read()
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any, Final

from ullage.operate.watch.nvml.identity import Identities
from ullage.operate.watch.nvml.library import INSUFFICIENT_SIZE, NOT_FOUND, code_of, reason_of
from ullage.operate.watch.sample import ProcessKind, ProcessSample

# NVML's number for "no MIG instance", in 32 bits.
NO_INSTANCE: Final = 0xFFFFFFFF
Place = tuple[int, int]
_WHOLE: Final[Place] = (NO_INSTANCE, NO_INSTANCE)
# More processes may start between the question how many there are and the question which.
_MAX_TRIES: Final = 4
# The later ones say more of a process that is in several lists.
_LISTS: Final = (
    (ProcessKind.GRAPHICS, "nvmlDeviceGetGraphicsRunningProcesses"),
    (ProcessKind.COMPUTE, "nvmlDeviceGetComputeRunningProcesses"),
    (ProcessKind.MPS, "nvmlDeviceGetMPSComputeRunningProcesses"),
)


class ProcessReader:
    """Reads the processes of one GPU; `reason` says why their share of its time is not known."""

    def __init__(self, nvml: ModuleType, handle: object, identities: Identities) -> None:
        self._nvml, self._handle, self._identities = nvml, handle, identities
        self._last_us = 0
        self.reason: str | None = None

    def read(self) -> dict[Place, tuple[ProcessSample, ...]]:
        """The processes by GPU instance and compute instance, in order of their numbers.

        Raises:
            NVMLError: the compute processes cannot be listed.
        """
        users: dict[tuple[int, Place], tuple[ProcessKind, int | None]] = {}
        for kind, name in _LISTS:
            for user in self._list(kind, getattr(self._nvml, name)):
                place = _place_of(user)
                before = users.get((user.pid, place))
                # Each list has the process's whole memory.
                sizes = [size for size in (user.usedGpuMemory, before and before[1]) if size]
                users[user.pid, place] = kind, max(sizes, default=user.usedGpuMemory)
        loads = self._read_loads() if users else {}
        places: dict[Place, list[ProcessSample]] = {}
        for (pid, place), (kind, used_bytes) in sorted(users.items(), key=lambda item: item[0]):
            load = loads.get(pid, 0.0) if self.reason is None else None
            known = self._identities.find(pid)
            process = replace(known, kind=kind, used_bytes=used_bytes, sm_frac=load)
            places.setdefault(place, []).append(process)
        return {place: tuple(processes) for place, processes in places.items()}

    def _list(self, kind: ProcessKind, ask: Callable[[object], list[Any]]) -> list[Any]:
        for turn in range(_MAX_TRIES):
            try:
                return ask(self._handle)
            except self._nvml.NVMLError as error:
                if code_of(error) == INSUFFICIENT_SIZE and turn < _MAX_TRIES - 1:
                    continue
                if kind is ProcessKind.COMPUTE:
                    raise
                return []  # graphics and MPS are not everywhere
        return []

    def _read_loads(self) -> dict[int, float]:
        """The share of time in which each process's kernels ran, since the last call."""
        try:
            samples = self._nvml.nvmlDeviceGetProcessUtilization(self._handle, self._last_us)
        except self._nvml.NVMLError as error:
            # "Not found": no process has run anything since.
            self.reason = None if code_of(error) == NOT_FOUND else reason_of(error)
            return {}
        self.reason = None
        loads = {}
        for sample in sorted(samples, key=lambda sample: sample.timeStamp):
            self._last_us = max(self._last_us, sample.timeStamp)
            if sample.pid and sample.smUtil <= 100:
                loads[sample.pid] = sample.smUtil / 100
        return loads


def _place_of(user: Any) -> Place:  # noqa: ANN401 - a structure of pynvml
    place = (
        getattr(user, "gpuInstanceId", NO_INSTANCE),
        getattr(user, "computeInstanceId", NO_INSTANCE),
    )
    return _WHOLE if None in place else place
