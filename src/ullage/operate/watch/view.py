"""A sample as a tree: each GPU with the jobs and the other processes on it, and what that means.

for gpu in view(sample).gpus:
    print(gpu.device.name, [job.headroom_bytes for job in gpu.jobs])
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ullage.ground.protocol.job import Job, JobDevice
from ullage.operate.watch.forecast import Forecast, forecast_limit
from ullage.operate.watch.sample import DeviceSample, ProcessSample, Sample
from ullage.operate.watch.sharing import Sharing, sharing_of


@dataclass(frozen=True, slots=True)
class JobView:
    """A recorded job on one GPU.

    Attributes:
        job, device: what it publishes, of itself and of its allocator there.
        process: as the driver lists it; None if the driver does not.
        limit_bytes: the most that its allocator can have allocated: what it has reserved and what
            is free on the GPU. None if the driver does not say what is free.
        headroom_bytes: the distance of the last step's peak to the limit.
        forecast: when the limit is reached; None if the peaks do not grow.
        age_s: for how long it has published nothing.
    """

    job: Job
    device: JobDevice
    process: ProcessSample | None
    limit_bytes: int | None
    headroom_bytes: int | None
    forecast: Forecast | None
    age_s: float

    @property
    def cached_bytes(self) -> int:
        """The bytes that the allocator holds and may use again, whole segments and pieces."""
        return max(self.device.reserved_bytes - self.device.allocated_bytes, 0)

    @property
    def growth_bytes_per_step(self) -> float | None:
        """How much the peak grows; None: it does not."""
        return None if self.forecast is None else self.forecast.bytes_per_step

    @property
    def forecast_s(self) -> float | None:
        """From the last step until the limit is reached; None: the peak does not grow."""
        return None if self.forecast is None else self.forecast.seconds


@dataclass(frozen=True, slots=True)
class GpuView:
    """A GPU with what is on it; `others` are the processes that publish nothing, `sharing` is how
    all of them share it (None: unknown).
    """

    device: DeviceSample
    jobs: tuple[JobView, ...] = ()
    others: tuple[ProcessSample, ...] = ()
    sharing: Sharing | None = None

    @property
    def allocated_bytes(self) -> int:
        """The bytes that the recorded jobs have in use."""
        return sum(job.device.allocated_bytes for job in self.jobs)

    @property
    def fragmented_bytes(self) -> int:
        """The bytes free in segments of theirs that are partly in use."""
        return sum(job.device.inactive_split_bytes for job in self.jobs)

    @property
    def reserved_bytes(self) -> int:
        """The bytes that their allocators hold of the driver."""
        return sum(job.device.reserved_bytes for job in self.jobs)


@dataclass(frozen=True, slots=True)
class View:
    """The machine; `elsewhere` are jobs whose GPU is not among those here."""

    sample: Sample
    gpus: tuple[GpuView, ...]
    elsewhere: tuple[Job, ...] = field(default=())

    def jobs(self) -> Iterator[JobView]:
        """Every job on every GPU."""
        return (job for gpu in self.gpus for job in gpu.jobs)


def view(sample: Sample) -> View:
    """Places each job on its GPUs."""
    placed: dict[int, list[tuple[Job, JobDevice]]] = {}
    elsewhere = []
    for job in sample.jobs:
        is_placed = False
        for device in job.devices:
            position = _find(sample.devices, job, device)
            if position is not None:
                placed.setdefault(position, []).append((job, device))
                is_placed = True
        if not is_placed:
            elsewhere.append(job)
    gpus = tuple(
        _view_gpu(sample, device, placed.get(position, []))
        for position, device in enumerate(sample.devices)
    )
    return View(sample, gpus, tuple(elsewhere))


def _find(devices: Sequence[DeviceSample], job: Job, device: JobDevice) -> int | None:
    """Where the job's device is: by its UUID; else where the driver lists the process."""
    if device.uuid is not None:
        uuids = [each.uuid for each in devices]
        return uuids.index(device.uuid) if device.uuid in uuids else None
    listed = [
        position
        for position, each in enumerate(devices)
        if any(process.pid == job.pid for process in each.processes or ())
    ]
    order = [each.index for each in job.devices].index(device.index)
    if len(listed) == len(job.devices):
        return listed[order]
    # Without a UUID and without the driver's list, the job's own number is all there is.
    positions = [position for position, each in enumerate(devices) if each.index == device.index]
    return positions[0] if positions and not listed else None


def _view_gpu(
    sample: Sample, device: DeviceSample, jobs: Sequence[tuple[Job, JobDevice]]
) -> GpuView:
    sharing = sharing_of(device, sample.devices)
    if not jobs:
        return GpuView(device, (), device.processes or (), sharing)
    processes = {process.pid: process for process in device.processes or ()}
    views = tuple(
        _view_job(sample, device, job, part, processes.get(job.pid)) for job, part in jobs
    )
    pids = {job.pid for job, _ in jobs}
    others = tuple(process for pid, process in processes.items() if pid not in pids)
    return GpuView(device, views, others, sharing)


def _view_job(
    sample: Sample,
    device: DeviceSample,
    job: Job,
    part: JobDevice,
    process: ProcessSample | None,
) -> JobView:
    limit = None if device.free_bytes is None else part.reserved_bytes + device.free_bytes
    # The steps' peaks are those of the job's fullest device.
    fullest = max(job.devices, key=lambda each: each.allocated_peak_bytes)
    peaks = job.step_peaks if part is fullest else ()
    latest = peaks[-1].allocated_peak_bytes if peaks else part.allocated_bytes
    highest = max(latest, part.allocated_bytes)
    return JobView(
        job,
        part,
        process,
        limit,
        None if limit is None else limit - highest,
        None if limit is None else forecast_limit(peaks, limit),
        max(sample.time_s - job.updated_s, 0.0),
    )
