"""Measures what the rules of alerts compare: the memory of jobs and how it grows, the state of GPUs
and their load, and the ranks of a job.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Final

from ullage.ground.protocol.job import Job, StepPeak
from ullage.ground.units import format_bytes
from ullage.operate.watch.alerts.outlook import GpuState, JobState, Outlook, gpu_id
from ullage.operate.watch.alerts.reading import UNKNOWN, Measured, Meter, Subject, Window
from ullage.operate.watch.forecast import MIN_STEPS
from ullage.operate.watch.sample import DeviceSample, ProcessSample


def measure_allocated(_: Meter, __: Subject, job: JobState) -> Measured:
    """The peak of allocated memory as a share of what the job can have."""
    peak, limit = format_bytes(job.peak_bytes), format_bytes(job.limit_bytes)
    text = f"allocated up to {peak} of the {limit} that it can have"
    return job.peak_bytes / job.limit_bytes, text


def measure_pressure(meter: Meter, subject: Subject, job: JobState) -> Measured:
    """In how many samples of the window the allocator gave memory back or tried again, while it had
    reserved nearly all that it can have.

    A full cache alone is healthy. The count is of samples, not of the counters' steps: one call of
    empty_cache() gives back hundreds of segments at once.
    """
    is_full = job.reserved_peak_bytes >= meter.least * job.limit_bytes
    window = meter.add(subject, float(is_full and job.num_retries + job.num_frees > 0))
    return window.sum, (
        f"reserved {format_bytes(job.reserved_peak_bytes)} of "
        f"{format_bytes(job.limit_bytes)}; in {window.sum:.0f} samples of the last "
        f"{meter.window_s:.0f} s it gave memory back to the driver or tried again"
    )


def measure_fragmentation(meter: Meter, _: Subject, job: JobState) -> Measured:
    """Pieces of partly used segments as a share of reserved memory.

    Between steps most pieces of a healthy job are free, and a cache of whole segments is not a
    loss: the smaller of the free pieces and of what the last step's peak left unused is counted.
    """
    device, steps = job.view.device, job.view.job.step_peaks
    peak = max([job.peak_bytes, *(step.allocated_peak_bytes for step in steps[-8:])])
    unused = min(max(device.reserved_bytes - peak, 0), device.inactive_split_bytes)
    is_large = device.reserved_bytes >= meter.least * job.limit_bytes
    share = unused / max(device.reserved_bytes, 1) if is_large else 0.0
    return share, (
        f"{format_bytes(unused)} of {format_bytes(device.reserved_bytes)} reserved are "
        "pieces that the peak left unused and that cannot be given back"
    )


def measure_ooms(meter: Meter, subject: Subject, job: JobState) -> Measured:
    """How often a job ran out of memory within the window."""
    count = meter.add(subject, job.num_ooms).sum
    return count, f"errors for want of memory in {meter.window_s / 60:.3g} min: {count:.0f}"


def measure_unpublished(_: Meter, __: Subject, gpu: GpuState) -> Measured:
    """Used memory of a GPU with processes that publish nothing, as a share of all.

    What jobs hold in their caches is left out: they can give it back. A GPU whose processes all
    publish has a reading of 0: other rules look at those.
    """
    device, jobs = gpu.view.device, gpu.view.jobs
    if device.used_bytes is None or not device.total_bytes:
        return UNKNOWN
    if device.processes is None and jobs:
        return UNKNOWN
    if device.processes is not None and not gpu.view.others:
        return 0.0, "every process publishes its memory"
    used = device.used_bytes - sum(job.cached_bytes for job in jobs)
    return used / device.total_bytes, (
        f"used {format_bytes(used)} of {format_bytes(device.total_bytes)}; processes that publish "
        "nothing may hold some of it in a cache"
    )


# A leak is told by more steps than a forecast: a cache that fills at the start is none.
_MIN_LEAK_STEPS: Final = 3 * MIN_STEPS


def measure_time_left(_: Meter, __: Subject, job: JobState) -> Measured:
    """Seconds until the peak reaches the limit; endless without growth, unknown before 12 steps."""
    forecast = job.view.forecast
    if len(job.view.job.step_peaks) < MIN_STEPS or job.view.limit_bytes is None:
        return UNKNOWN
    if forecast is None:
        return math.inf, "the peaks of its steps do not grow"
    return max(forecast.seconds - job.view.age_s, 0.0), (
        f"grows by {format_bytes(round(forecast.bytes_per_step))} a step; "
        f"{forecast.steps:.0f} steps are left to {format_bytes(job.limit_bytes)}"
    )


def measure_growth(_: Meter, __: Subject, job: JobState) -> Measured:
    """Bytes by which the peak grows from step to step; 0 without significant growth, unknown before
    36 steps, and on other GPUs than the job's fullest.
    """
    record = job.view.job
    fullest = max(record.devices, key=lambda each: each.allocated_peak_bytes)
    is_known = job.view.device is fullest and job.view.limit_bytes is not None
    if not is_known or len(record.step_peaks) < _MIN_LEAK_STEPS:
        return UNKNOWN
    rate = 0.0 if job.view.forecast is None else job.view.forecast.bytes_per_step
    return rate, (
        f"the peak of a step grew by {format_bytes(round(rate))} a step over the last "
        f"{len(record.step_peaks)}"
    )


# A power cap, set clocks and an idle GPU are as somebody wanted it.
_HARMFUL: Final = {
    "hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown",
}  # fmt: skip


def measure_loss(_: Meter, __: Subject, gpu: GpuState) -> Measured:
    """1 if the GPU has fallen off the bus, 0 if it answers."""
    is_lost = gpu.view.device.is_lost
    text = "the driver has lost it; see `dmesg` for its Xid" if is_lost else "it answers"
    return float(is_lost), text


def measure_temperature(_: Meter, __: Subject, gpu: GpuState) -> Measured:
    """Degrees above the temperature at which this GPU slows down; below it negative."""
    now, slowdown = gpu.view.device.temperature_c, gpu.view.device.slowdown_c
    if now is None or slowdown is None:
        return UNKNOWN
    return float(now - slowdown), f"{now} °C; it slows down at {slowdown} °C"


def measure_throttling(meter: Meter, subject: Subject, gpu: GpuState) -> Measured:
    """The share of the window's samples in which the clocks were held down by heat or by the power
    supply; a power cap alone is not counted.
    """
    reasons = gpu.view.device.throttle_reasons
    if reasons is None:
        return UNKNOWN
    window = meter.add(subject, float(not _HARMFUL.isdisjoint(reasons)))
    if window.span_s < meter.window_s / 2:
        return UNKNOWN
    names = ", ".join(sorted(_HARMFUL & reasons)) or "not now"
    return window.mean, f"clocks are held down: {names}"


def measure_corrected(meter: Meter, subject: Subject, gpu: GpuState) -> Measured:
    """Corrected memory errors within the window."""
    return _errors(meter, subject, gpu.num_ecc_corrected, "corrected")


def measure_uncorrected(meter: Meter, subject: Subject, gpu: GpuState) -> Measured:
    """Uncorrected memory errors within the window."""
    return _errors(meter, subject, gpu.num_ecc_uncorrected, "uncorrected")


def _errors(meter: Meter, subject: Subject, count: int | None, kind: str) -> Measured:
    if count is None:
        return UNKNOWN
    total = meter.add(subject, count).sum
    return total, f"{total:.0f} {kind} memory errors in {meter.window_s / 60:.0f} min"


def measure_power_limit(meter: Meter, subject: Subject, gpu: GpuState) -> Measured:
    """Power as a share of the GPU's limit, as a mean of the window."""
    power, limit = gpu.view.device.power_w, gpu.view.device.power_limit_w
    if power is None or not limit:
        return UNKNOWN
    mean = meter.add(subject, power / limit).mean
    return mean, f"{power:.0f} W; its limit is {limit:.0f} W"


_MIN_RANKS: Final = 3
_NUM_STEPS: Final = 8
# Ranks of one job begin within this time of each other.
_START_S: Final = 600.0
# An odd rank stands apart from the others by more than these do from each other.
_SPREADS: Final = 3.0
# A scaler begins too high, and finds its scale within these steps.
_FIRST_ATTEMPTS: Final = 50
_MIN_ATTEMPTS: Final = 40
_MAX_ATTEMPTS: Final = 100


Ranks = tuple[Job, list[Job]]
"""A rank, and all ranks of its job that are here."""


def each_rank(outlook: Outlook) -> Iterator[tuple[Subject, Ranks]]:
    """Every rank of a job that has several here."""
    for ranks in _groups(outlook.sample.jobs):
        yield from ((_subject(job), (job, ranks)) for job in ranks)


def measure_straggler_time(_: Meter, __: Subject, ranks: Ranks) -> Measured:
    """By what share a rank's step is slower than that of the others. Ranks that wait for each other
    in each step all take as long as the slowest: then this says nothing.
    """
    apart = _apart(ranks, lambda step: step.seconds)
    if apart is None:
        return UNKNOWN
    share, value, middle = apart
    return share, f"its step takes {value:.3g} s, that of the other ranks {middle:.3g} s"


def measure_straggler_memory(_: Meter, __: Subject, ranks: Ranks) -> Measured:
    """By what share a rank's peak is above or below that of the others."""
    apart = _apart(ranks, lambda step: step.allocated_peak_bytes)
    if apart is None:
        return UNKNOWN
    share, *levels = apart
    value, middle = (format_bytes(round(level)) for level in levels)
    return abs(share), f"its peak is {value}, that of the other ranks {middle}"


def _apart(ranks: Ranks, of: Callable[[StepPeak], float]) -> tuple[float, float, float] | None:
    """By what share a rank differs from the middle of the others, 0 where they differ as much from
    each other; with its value and that middle. None: too few are known.
    """
    job, everyone = ranks
    value = _typical(job, of)
    others = [
        other for each in everyone if each is not job and (other := _typical(each, of)) is not None
    ]
    if value is None or len(others) < _MIN_RANKS - 1:
        return None
    middle = median(others)
    is_odd = abs(value - middle) > _SPREADS * (max(others) - min(others))
    return (value - middle) / middle if is_odd and middle else 0.0, value, middle


def _typical(job: Job, of: Callable[[StepPeak], float]) -> float | None:
    """The median over the last 8 steps; None: there are fewer."""
    steps = job.step_peaks[-_NUM_STEPS:]
    return median(map(of, steps)) if len(steps) == _NUM_STEPS else None


def _groups(jobs: Sequence[Job]) -> Iterator[list[Job]]:
    """The ranks of each job: of one name and size, begun at about one time, each rank once."""
    by_name: dict[tuple[str, int], list[list[Job]]] = {}
    for job in sorted(jobs, key=lambda each: each.started_s):
        if job.rank is None or job.world_size is None:
            continue
        groups = by_name.setdefault((job.name, job.world_size), [])
        for group in groups:
            is_near = job.started_s - group[0].started_s <= _START_S
            if is_near and job.rank not in {other.rank for other in group}:
                group.append(job)
                break
        else:
            groups.append([job])
    return (group for groups in by_name.values() for group in groups)


def _subject(job: Job) -> Subject:
    return Subject(None, job.pid, job.started_s, None, job.name, job.rank)


def each_scaled_job(outlook: Outlook) -> Iterator[tuple[Subject, tuple[int, int]]]:
    """Every job with a gradient scaler: its steps, and those that were skipped."""
    for job in outlook.sample.jobs:
        if job.scaler_skips is not None and job.step is not None:
            yield _subject(job), (job.step, job.scaler_skips)


def measure_scaler_skips(meter: Meter, subject: Subject, now: tuple[int, int]) -> Measured:
    """The share of the last 40 to 100 steps that the gradient scaler skipped; its first 50 do not
    count.
    """
    counts: deque[tuple[int, int]] = meter.memory.setdefault(subject, deque())
    if counts and (now[0] < counts[-1][0] or now[1] < counts[-1][1]):
        counts.clear()
    if sum(now) < _FIRST_ATTEMPTS:
        return UNKNOWN
    if not counts or counts[-1] != now:
        counts.append(now)
    while len(counts) > 2 and _attempts(counts[1], now) >= _MAX_ATTEMPTS:
        counts.popleft()
    attempts, skips = _attempts(counts[0], now), now[1] - counts[0][1]
    if attempts < _MIN_ATTEMPTS:
        return UNKNOWN
    return skips / attempts, f"the gradient scaler skipped {skips} of the last {attempts} steps"


def _attempts(before: tuple[int, int], now: tuple[int, int]) -> int:
    """Steps, skipped or not; by the skips alone where the job does not count a skipped step."""
    return max(now[0] - before[0], now[1] - before[1])


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
