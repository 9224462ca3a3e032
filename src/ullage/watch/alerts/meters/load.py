"""Meters of load: utilisation and power beside what they were, and processes that do nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from statistics import median
from typing import Final

from ullage.units import format_bytes
from ullage.watch.alerts.outlook import GpuState, Outlook, gpu_id
from ullage.watch.alerts.reading import Meter, Reading, Subject, Window
from ullage.watch.sample import DeviceSample, ProcessSample

_MAX_USUAL: Final = 600
_MIN_USUAL: Final = 20
_MIN_USUAL_S: Final = 300.0
# What deviates by more is not taken into what is usual.
_USUAL_SHARE: Final = 0.2
# A change of power together with one of utilisation is as it should be.
_STEADY_SHARE: Final = 0.15
# NVML counts a process's kernels in samples; a share below this is none.
_MIN_SM_FRAC: Final = 0.01


_ACTIVITY: Final = "activity"
_KERNELS: Final = "kernels"


class _Course:
    """What a meter remembers; it changes."""

    __slots__ = ("recent", "since_s", "until_s", "usual")

    def __init__(self, recent: Window) -> None:
        self.recent = recent
        self.usual: deque[float] = deque(maxlen=_MAX_USUAL)
        self.since_s: float | None = None
        self.until_s = 0.0

    def add(self, time_s: float, value: float) -> float | None:
        """The mean of the window as a share of what was usual before; None: not known yet."""
        if self.since_s is None or time_s - self.until_s > _MIN_USUAL_S:
            self.since_s = time_s
            self.usual.clear()
        self.until_s = time_s
        old = self.recent.add(time_s, value)
        level = self.level
        if level is None or abs(self.recent.mean - level) <= _USUAL_SHARE * level:
            self.usual.extend(old)
        is_known = len(self.usual) >= _MIN_USUAL and time_s - self.since_s >= _MIN_USUAL_S
        return self.recent.mean / self.level if is_known and self.level else None

    @property
    def level(self) -> float | None:
        """What is usual."""
        return median(self.usual) if len(self.usual) >= _MIN_USUAL else None


class _Loads(Meter):
    """What both meters below need: the processes that work, and courses that begin with them."""

    def courses(
        self, gpu: GpuState, count: int, measure: str = ""
    ) -> tuple[Subject, tuple[_Course, ...] | None]:
        """The GPU's courses; None: nothing runs there. They begin anew when other processes come or
        go, and when something else is measured.
        """
        device = gpu.view.device
        subject = Subject(gpu_id(device), gpu_index=device.index)
        pids = frozenset(process.pid for process in device.processes or ())
        pids |= {job.view.job.pid for job in gpu.jobs}
        if not pids:
            self.memory.pop(subject, None)
            return subject, None
        key = (pids, measure)
        if subject not in self.memory or self.memory[subject][0] != key:
            courses = tuple(_Course(Window(self.window_s)) for _ in range(count))
            self.memory[subject] = (key, courses)
        return subject, self.memory[subject][1]

    def measured(self, gpu: GpuState) -> str:
        """What was measured of the GPU; empty if nothing was."""
        device = gpu.view.device
        known = self.memory.get(Subject(gpu_id(device), gpu_index=device.index))
        return "" if known is None else str(known[0][1])


class UtilisationDrop(_Loads):
    """The mean load of the window as a share of what it was with the same processes.

    Load is how much of the multiprocessors or of the memory's bandwidth is used, whichever is more,
    where the driver tells; else NVML's utilisation, which only says that a kernel was running.
    """

    def read(self, outlook: Outlook) -> Iterator[Reading]:
        """A reading of each GPU."""
        for gpu in outlook.gpus:
            device = gpu.view.device
            load, measure = _load(device)
            # Activity is unknown for a moment now and then: that is no reason to begin anew.
            is_lapse = measure != _ACTIVITY and self.measured(gpu) == _ACTIVITY
            if load is None or is_lapse or (device.processes is None and not gpu.jobs):
                yield Reading(Subject(gpu_id(device), gpu_index=device.index), None)
                continue
            subject, courses = self.courses(gpu, 1, measure)
            if courses is None:
                yield Reading(subject, 1.0, "no process runs on it")
                continue
            (course,) = courses
            share = course.add(outlook.time_s, load)
            level = course.level or 0.0
            if share is not None and level < self.least:
                share = 1.0  # it was idle before
            now, before = f"{100 * course.recent.mean:.0f} %", f"{100 * level:.0f} %"
            text = (
                f"{now} of the multiprocessors or of the memory's bandwidth are used, before "
                f"{before}"
                if measure == _ACTIVITY
                else f"a kernel was running {now} of the time, before {before} (NVML's utilisation "
                "says no more than that)"
            )
            yield Reading(subject, share, text)


def _load(device: DeviceSample) -> tuple[float | None, str]:
    """The load, and what it is a measure of."""
    shares = (device.sm_active_frac, device.dram_active_frac)
    known = [share for share in shares if share is not None]
    return (max(known), _ACTIVITY) if known else (device.gpu_frac, _KERNELS)


class PowerChange(_Loads):
    """By what share the mean power of the window differs from what it was with the same processes,
    while utilisation is as it was.
    """

    def read(self, outlook: Outlook) -> Iterator[Reading]:
        """A reading of each GPU."""
        for gpu in outlook.gpus:
            device = gpu.view.device
            is_known = device.processes is not None or bool(gpu.jobs)
            if device.power_w is None or device.gpu_frac is None or not is_known:
                yield Reading(Subject(gpu_id(device), gpu_index=device.index), None)
                continue
            subject, courses = self.courses(gpu, 2)
            if courses is None:
                yield Reading(subject, 0.0, "no process runs on it")
                continue
            power = courses[0].add(outlook.time_s, device.power_w)
            load = courses[1].add(outlook.time_s, device.gpu_frac)
            change = None if power is None or load is None else abs(power - 1.0)
            if load is not None and abs(load - 1.0) > _STEADY_SHARE:
                change = 0.0
            text = (
                f"{courses[0].recent.mean:.0f} W, before {courses[0].level or 0:.0f} W at the same "
                "utilisation"
            )
            yield Reading(subject, change, text)


class IdleHolder(Meter):
    """1 for a process that holds memory and does nothing, 0 for one that works.

    A process works if it ran kernels, or if its published step or memory has changed. If the driver
    does not say whose kernels ran, a GPU without any tells that nobody works.
    """

    def read(self, outlook: Outlook) -> Iterator[Reading]:
        """A reading of each process on each GPU."""
        for gpu in outlook.gpus:
            jobs = {job.view.job.pid: job for job in gpu.jobs}
            device = gpu.view.device
            for process in device.processes or ():
                job = jobs.get(process.pid)
                name = process.name if job is None else job.view.job.name
                subject = Subject(gpu_id(device), process.pid, None, device.index, name)
                is_busy = _is_busy(device, process, has_changed=job is not None and job.is_busy)
                holds = process.used_bytes
                if holds is None or not device.total_bytes:
                    yield Reading(subject, None)
                elif holds < self.least * device.total_bytes:
                    yield Reading(subject, 0.0, "holds little")
                else:
                    value = None if is_busy is None else float(not is_busy)
                    does = "works" if is_busy else "runs no kernel"
                    yield Reading(subject, value, f"holds {format_bytes(holds)} and {does}")


def _is_busy(device: DeviceSample, process: ProcessSample, *, has_changed: bool) -> bool | None:
    """Whether a process works; None: it cannot be known."""
    if has_changed:
        return True
    if process.sm_frac is not None:
        return process.sm_frac >= _MIN_SM_FRAC
    if device.gpu_frac is None:
        return None
    if device.gpu_frac == 0.0:
        return False
    return True if len(device.processes or ()) == 1 else None
