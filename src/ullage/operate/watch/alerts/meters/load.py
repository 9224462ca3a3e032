"""Measures load: utilisation and power beside what they were, and processes that do nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from statistics import median
from typing import Final

from ullage.ground.units import format_bytes
from ullage.operate.watch.alerts.outlook import GpuState, JobState, Outlook, gpu_id
from ullage.operate.watch.alerts.reading import UNKNOWN, Measured, Meter, Subject, Window
from ullage.operate.watch.sample import DeviceSample, ProcessSample

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
    """The memory of a meter; it changes."""

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
        """The usual level."""
        return median(self.usual) if len(self.usual) >= _MIN_USUAL else None


def _courses(
    meter: Meter, subject: Subject, gpu: GpuState, count: int, measure: str = ""
) -> tuple[_Course, ...] | None:
    """The GPU's courses; None: nothing runs there. They begin anew when other processes come or go,
    and when something else is measured.
    """
    pids = frozenset(process.pid for process in gpu.view.device.processes or ())
    pids |= {job.view.job.pid for job in gpu.jobs}
    if not pids:
        meter.memory.pop(subject, None)
        return None
    key = (pids, measure)
    if subject not in meter.memory or meter.memory[subject][0] != key:
        courses = tuple(_Course(Window(meter.window_s)) for _ in range(count))
        meter.memory[subject] = (key, courses)
    known: tuple[_Course, ...] = meter.memory[subject][1]
    return known


def _knows_processes(gpu: GpuState) -> bool:
    return gpu.view.device.processes is not None or bool(gpu.jobs)


def measure_utilisation_drop(meter: Meter, subject: Subject, gpu: GpuState) -> Measured:
    """The mean load of the window as a share of what it was with the same processes.

    Load is how much of the multiprocessors or of the memory's bandwidth is used, whichever is more,
    where the driver tells; else NVML's utilisation, which only says that a kernel was running.
    """
    device = gpu.view.device
    shares = (device.sm_active_frac, device.dram_active_frac)
    known = [share for share in shares if share is not None]
    load, measure = (max(known), _ACTIVITY) if known else (device.gpu_frac, _KERNELS)
    # Activity is unknown for a moment now and then: that is no reason to begin anew.
    before_that = meter.memory[subject][0][1] if subject in meter.memory else ""
    is_lapse = measure != _ACTIVITY and before_that == _ACTIVITY
    if load is None or is_lapse or not _knows_processes(gpu):
        return UNKNOWN
    courses = _courses(meter, subject, gpu, 1, measure)
    if courses is None:
        return 1.0, "no process runs on it"
    (course,) = courses
    share = course.add(meter.time_s, load)
    level = course.level or 0.0
    if share is not None and level < meter.least:
        share = 1.0  # it was idle before
    now, before = f"{100 * course.recent.mean:.0f} %", f"{100 * level:.0f} %"
    if measure == _ACTIVITY:
        used = "of the multiprocessors or of the memory's bandwidth are used"
        return share, f"{now} {used}, before {before}"
    return share, (
        f"a kernel was running {now} of the time, before {before} (NVML's utilisation says no more "
        "than that)"
    )


def measure_power_change(meter: Meter, subject: Subject, gpu: GpuState) -> Measured:
    """By what share the mean power of the window differs from what it was with the same processes,
    while utilisation is as it was.
    """
    device = gpu.view.device
    if device.power_w is None or device.gpu_frac is None or not _knows_processes(gpu):
        return UNKNOWN
    courses = _courses(meter, subject, gpu, 2)
    if courses is None:
        return 0.0, "no process runs on it"
    power = courses[0].add(meter.time_s, device.power_w)
    load = courses[1].add(meter.time_s, device.gpu_frac)
    change = None if power is None or load is None else abs(power - 1.0)
    if load is not None and abs(load - 1.0) > _STEADY_SHARE:
        change = 0.0
    now_w, before_w = courses[0].recent.mean, courses[0].level or 0
    return change, f"{now_w:.0f} W, before {before_w:.0f} W at the same utilisation"


Holder = tuple[DeviceSample, ProcessSample, JobState | None]
"""A process on a GPU, and what it publishes."""


def each_process(outlook: Outlook) -> Iterator[tuple[Subject, Holder]]:
    """Every process on every GPU."""
    for gpu in outlook.gpus:
        jobs = {job.view.job.pid: job for job in gpu.jobs}
        device = gpu.view.device
        for process in device.processes or ():
            job = jobs.get(process.pid)
            name = process.name if job is None else job.view.job.name
            subject = Subject(gpu_id(device), process.pid, None, device.index, name)
            yield subject, (device, process, job)


def measure_idleness(meter: Meter, _: Subject, holder: Holder) -> Measured:
    """1 for a process that holds memory and does nothing, 0 for one that works.

    A process works if it ran kernels, or if its published step or memory has changed. If the driver
    does not say whose kernels ran, a GPU without any tells that nobody works.
    """
    device, process, job = holder
    holds = process.used_bytes
    if holds is None or not device.total_bytes:
        return UNKNOWN
    if holds < meter.least * device.total_bytes:
        return 0.0, "holds little"
    is_busy = _is_busy(device, process, has_changed=job is not None and job.is_busy)
    value = None if is_busy is None else float(not is_busy)
    return value, f"holds {format_bytes(holds)} and {'works' if is_busy else 'runs no kernel'}"


def _is_busy(device: DeviceSample, process: ProcessSample, *, has_changed: bool) -> bool | None:
    """True if a process works; None: it cannot be known."""
    if has_changed:
        return True
    if process.sm_frac is not None:
        return process.sm_frac >= _MIN_SM_FRAC
    if device.gpu_frac is None:
        return None
    if device.gpu_frac == 0.0:
        return False
    return True if len(device.processes or ()) == 1 else None
