"""The GPUs and jobs of this machine as a source of samples.

source = MachineSource(open_nvml())
source.read().devices
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Final

from ullage.ground.protocol.job import Job
from ullage.operate.watch.jobs import JobReader
from ullage.operate.watch.nvml.device import DeviceReader, NvmlClosedError
from ullage.operate.watch.nvml.identity import Identities
from ullage.operate.watch.nvml.library import reason_of
from ullage.operate.watch.sample import DeviceSample, Note, Sample

_JOBS_S: Final = 1.0
_COUNT_S: Final = 10.0


class MachineSource:
    """Reads this machine's GPUs through NVML, and the jobs of this user."""

    def __init__(
        self,
        nvml: ModuleType,
        *,
        environment: Mapping[str, str] | None = None,
        proc: Path = Path("/proc"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nvml, self._clock = nvml, clock
        self._identities = Identities(proc, clock)
        self._jobs_reader = JobReader(os.environ if environment is None else environment)
        self._host = socket.gethostname()
        self._readers: list[DeviceReader] = []
        self._jobs: tuple[Job, ...] = ()
        self._problems: tuple[str, ...] = ()
        self._jobs_due_s = self._count_due_s = 0.0
        self._driver: str | None = None
        self._reason: str | None = None
        self._notes: tuple[Note, ...] = ()
        self._noted: object = None

    def read(self) -> Sample:
        """The state of now; what cannot be read is None, with a note."""
        now_s = self._clock()
        if now_s >= self._jobs_due_s:
            self._jobs_due_s = now_s + _JOBS_S
            self._jobs, self._problems = self._jobs_reader.read()
            self._identities.trust(frozenset(job.pid for job in self._jobs))
        devices = self._read_devices(now_s)
        return Sample(
            time.time(), self._host, devices, self._jobs, self._current_notes(), self._driver
        )

    def close(self) -> None:
        """Closes NVML."""
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:
            return  # it is closed already

    def _read_devices(self, now_s: float) -> tuple[DeviceSample, ...]:
        try:
            if now_s >= self._count_due_s:
                self._count_due_s = now_s + _COUNT_S
                self._find_devices()
            return tuple(device for reader in self._readers for device in reader.read())
        except NvmlClosedError:
            self._reopen()
            return ()

    def _find_devices(self) -> None:
        """Adds GPUs that are new. One that has gone stays, and is lost."""
        try:
            count = self._nvml.nvmlDeviceGetCount()
            self._driver = self._nvml.nvmlSystemGetDriverVersion()
        except (self._nvml.NVMLError, UnicodeError) as error:
            self._reason = reason_of(error)
            if not self._readers:
                raise NvmlClosedError from None
            return
        self._reason = None
        for index in range(len(self._readers), count):
            reader = DeviceReader(self._nvml, index, self._identities, self._clock)
            self._readers.append(reader)

    def _reopen(self) -> None:
        """Opens NVML again, as after a driver was reloaded; else the next reading tries."""
        self._readers, self._count_due_s = [], 0.0
        try:
            self._nvml.nvmlInit()
        except self._nvml.NVMLError as error:
            self._reason = reason_of(error)

    def _current_notes(self) -> tuple[Note, ...]:
        """The notes; the same tuple as before, as long as no reason has changed."""
        reasons = [dict(reader.reasons) for reader in self._readers], self._problems, self._reason
        if reasons != self._noted:
            self._noted = reasons
            notes = group_notes(reader.reasons for reader in self._readers)
            notes += [Note("jobs", problem) for problem in self._problems]
            notes += [Note("devices", self._reason)] if self._reason else []
            self._notes = tuple(notes)
        return self._notes


def group_notes(reasons: Iterable[Mapping[str, str]]) -> list[Note]:
    """A note for each field and reason, with the GPUs that it is about.

    Args:
        reasons: of each GPU, by field.
    """
    groups: dict[tuple[str, str], list[int]] = {}
    for index, fields in enumerate(reasons):
        for field, reason in fields.items():
            groups.setdefault((field, reason), []).append(index)
    return [Note(field, reason, tuple(indices)) for (field, reason), indices in groups.items()]
