"""The publication of a recorded job for `ullage watch`: at most once a second, as a step ends or a
phase begins, and at once where memory runs out.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from ullage.ground.protocol.job import (
    MAX_STEP_PEAKS,
    Job,
    JobDevice,
    JobFileError,
    StepPeak,
    jobs_directory,
    publish_job,
    remove_ended_jobs,
    withdraw_job,
)
from ullage.ground.protocol.run import launcher_rank
from ullage.players.inside.allocator.peaks import Peaks
from ullage.players.inside.part import Part
from ullage.players.inside.patches import Patches
from ullage.players.inside.steps.scaler_skips import ScalerSkips

_INTERVAL_S = 1.0
_BEGUN = {f"{phase}_begin": phase for phase in ("forward", "backward", "optimizer")}


class Publication(Part):
    """The file of this process, with the steps that scalers skipped."""

    def __init__(self, torch: ModuleType, peaks: Peaks, skips: ScalerSkips) -> None:
        self._torch: Any = torch
        self._peaks = peaks
        self._skips = skips
        self._phase: str | None = None  # None where marks are not noted: in the mode counters
        self._started_s = time.time()
        self._next_s = 0.0
        self._directory: Path | None = None
        self._steps: deque[StepPeak] = deque(maxlen=MAX_STEP_PEAKS)
        self._num_steps = 0
        self._problem: str | None = None

    def install(self, _patches: Patches) -> None:
        """Makes the directory."""
        try:
            self._directory = jobs_directory(os.environ, make=True)
            remove_ended_jobs(self._directory)
        except (JobFileError, OSError) as error:
            self._problem = f"nothing is published for `ullage watch`: {error}"
        atexit.register(self.remove)

    def remarks(self) -> list[str]:
        """Why nothing can be published, where that is so."""
        return [] if self._problem is None else [self._problem]

    def note_step(self, allocated_bytes: int, reserved_bytes: int, seconds: float) -> None:
        """One more step has ended."""
        self._num_steps += 1
        self._steps.append(StepPeak(self._num_steps, allocated_bytes, reserved_bytes, seconds))
        self._publish()

    def note_mark(self, kind: str) -> None:
        """Publishes what begins if that is due: it may take long, or never end."""
        self._phase = _BEGUN.get(kind)
        if self._phase is not None and self._torch.cuda.is_initialized():
            self._publish()

    def note_oom(self) -> None:
        """Publishes at once: what comes next may be the end."""
        self._next_s = 0.0
        self._publish()

    def _publish(self) -> None:
        """Replaces the file, if a second has passed; a disk that takes nothing is not an error of
        the job's.
        """
        now_s = time.monotonic()
        if self._directory is not None and now_s >= self._next_s:
            self._next_s = now_s + _INTERVAL_S
            with contextlib.suppress(OSError):
                publish_job(self._job(self._phase, self._skips.count), self._directory)

    def remove(self) -> None:
        """Withdraws the file. Where memory has run out it stays: the program often ends at once,
        and `ullage watch` looks once a second.
        """
        atexit.unregister(self.remove)
        if self._directory is None:
            return
        last = self._job(None, None)
        if any(device.num_ooms for device in last.devices):
            with contextlib.suppress(OSError):
                publish_job(replace(last, ended_s=time.time()), self._directory)
        else:
            withdraw_job(self._directory, os.getpid())
        self._directory = None

    def leave(self) -> None:
        """It is the other process's."""
        atexit.unregister(self.remove)

    def _job(self, phase: str | None, scaler_skips: int | None) -> Job:
        size = os.environ.get("WORLD_SIZE", "")
        last = self._steps[-1] if self._steps else None
        return Job(
            pid=os.getpid(),
            started_s=self._started_s,
            updated_s=time.time(),
            name=Path(sys.argv[0] if sys.argv else "").name or "python",
            devices=tuple(self._devices()),
            rank=launcher_rank(),
            world_size=int(size) if size.isdigit() else None,
            phase=phase,
            step=self._num_steps or None,
            step_seconds=None if last is None else last.seconds,
            scaler_skips=scaler_skips,
            step_peaks=tuple(self._steps),
        )

    def _devices(self) -> list[JobDevice]:
        cuda = self._torch.cuda
        if not cuda.is_initialized():
            return []
        devices = []
        for index in range(cuda.device_count()):
            stats, totals = self._torch._C._cuda_memoryStats(index), self._peaks.of_device(index)
            if not totals["peak_reserved_bytes"]:
                continue
            now = {name: value["all"]["current"] for name, value in stats.items()
                   if name.endswith("_bytes") and "all" in value}  # fmt: skip
            properties = cuda.get_device_properties(index)
            uuid = getattr(properties, "uuid", None)
            devices.append(
                JobDevice(
                    index=index,
                    uuid=None if uuid is None else f"GPU-{uuid}",
                    allocated_bytes=now["allocated_bytes"],
                    reserved_bytes=now["reserved_bytes"],
                    active_bytes=now["active_bytes"],
                    inactive_split_bytes=now["inactive_split_bytes"],
                    allocated_peak_bytes=totals["peak_allocated_bytes"],
                    reserved_peak_bytes=totals["peak_reserved_bytes"],
                    num_alloc_retries=totals["num_alloc_retries"],
                    num_ooms=totals["num_ooms"],
                    num_device_frees=stats.get("num_device_free"),
                    total_bytes=properties.total_memory,
                )
            )
        return devices
