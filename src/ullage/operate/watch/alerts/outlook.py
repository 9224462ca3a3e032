"""A sample with what has changed since the one before: what the meters of all rules read.

Counters may jump back, as after a reset of the driver's: then nothing is known to have happened,
and the count goes on from there.

    lookout = Lookout()
    for sample in samples:
        outlook = lookout.look(sample)
"""

from __future__ import annotations

from dataclasses import dataclass

from ullage.ground.protocol.job import Job, StepPeak
from ullage.operate.watch.sample import DeviceSample, Sample
from ullage.operate.watch.view import GpuView, JobView, view


@dataclass(frozen=True, slots=True)
class JobState:
    """A job on a GPU.

    Attributes:
        view: what it publishes, with its limit.
        gpu: where it is.
        peak_bytes: the highest allocated bytes since the sample before.
        reserved_peak_bytes: likewise of reserved bytes.
        num_retries, num_frees, num_ooms: since the sample before.
        is_busy: whether its step or its memory has changed since then.
    """

    view: JobView
    gpu: DeviceSample
    peak_bytes: int
    reserved_peak_bytes: int
    num_retries: int
    num_frees: int
    num_ooms: int
    is_busy: bool

    @property
    def limit_bytes(self) -> int:
        """The most that can be allocated; all of the device if the driver does not say more."""
        limit = self.view.limit_bytes
        return max(self.view.device.total_bytes if limit is None else limit, 1)


@dataclass(frozen=True, slots=True)
class GpuState:
    """A GPU with the jobs on it; errors are counted since the sample before, None: unknown."""

    view: GpuView
    jobs: tuple[JobState, ...]
    num_ecc_corrected: int | None
    num_ecc_uncorrected: int | None


@dataclass(frozen=True, slots=True)
class Outlook:
    """The machine at a moment."""

    time_s: float
    sample: Sample
    gpus: tuple[GpuState, ...]


def gpu_id(device: DeviceSample) -> str:
    """A GPU's name among the others: its UUID, or its number where the driver says none."""
    return device.uuid or f"gpu-{device.index}"


class Lookout:
    """Remembers the last sample."""

    def __init__(self) -> None:
        self._jobs: dict[tuple[int, float, int], JobView] = {}
        self._gpus: dict[str, DeviceSample] = {}

    def look(self, sample: Sample) -> Outlook:
        """The sample beside the one before."""
        gpus = tuple(self._gpu(gpu) for gpu in view(sample).gpus)
        self._jobs = {_key(job): job for gpu in gpus for job in gpu.view.jobs}
        # A lost GPU has no counters: those from before are kept.
        self._gpus |= {gpu_id(gpu): gpu for gpu in sample.devices if not gpu.is_lost}
        for uuid in self._gpus.keys() - {gpu_id(gpu) for gpu in sample.devices}:
            del self._gpus[uuid]
        return Outlook(sample.time_s, sample, gpus)

    def _gpu(self, gpu: GpuView) -> GpuState:
        before = self._gpus.get(gpu_id(gpu.device))
        jobs = tuple(self._job(gpu.device, job) for job in gpu.jobs)
        corrected = None if before is None else before.ecc_corrected
        uncorrected = None if before is None else before.ecc_uncorrected
        return GpuState(
            gpu,
            jobs,
            _rise(corrected, gpu.device.ecc_corrected),
            _rise(uncorrected, gpu.device.ecc_uncorrected),
        )

    def _job(self, gpu: DeviceSample, job: JobView) -> JobState:
        now, before = job.device, self._jobs.get(_key(job))
        last = None if before is None else before.device
        steps = _new_steps(job, before)
        peaks = [now.allocated_bytes, *(step.allocated_peak_bytes for step in steps)]
        reserved = [now.reserved_bytes, *(step.reserved_peak_bytes for step in steps)]
        if last is not None and now.allocated_peak_bytes > last.allocated_peak_bytes:
            peaks.append(now.allocated_peak_bytes)
        if last is not None and now.reserved_peak_bytes > last.reserved_peak_bytes:
            reserved.append(now.reserved_peak_bytes)
        return JobState(
            job,
            gpu,
            max(peaks),
            max(reserved),
            _rise(None if last is None else last.num_alloc_retries, now.num_alloc_retries) or 0,
            _rise(None if last is None else last.num_device_frees, now.num_device_frees) or 0,
            _rise(None if last is None else last.num_ooms, now.num_ooms) or 0,
            before is None or before.job.step != job.job.step or last != now,
        )


def _key(job: JobView) -> tuple[int, float, int]:
    return (job.job.pid, job.job.started_s, job.device.index)


def _rise(before: int | None, now: int | None) -> int | None:
    """The rise of a counter; None: it is not known now, or was not before."""
    return None if before is None or now is None else max(now - before, 0)


def _new_steps(job: JobView, before: JobView | None) -> tuple[StepPeak, ...]:
    """The steps that have ended since the sample before, of the job's fullest device alone; at
    first sight the last step.
    """
    record: Job = job.job
    fullest = max(record.devices, key=lambda each: each.allocated_peak_bytes)
    if job.device is not fullest:
        return ()
    if before is None:
        return record.step_peaks[-1:]
    last = before.job.step_peaks[-1].step if before.job.step_peaks else -1
    return tuple(step for step in record.step_peaks if step.step > last)
