"""Meters of memory: what jobs have allocated and reserved, and what other processes use."""

from __future__ import annotations

from collections.abc import Iterator

from ullage.units import format_bytes
from ullage.watch.alerts.outlook import GpuState, JobState, Outlook, gpu_id
from ullage.watch.alerts.reading import Meter, Reading, Subject


def jobs_of(outlook: Outlook) -> Iterator[JobState]:
    """Every job on every GPU."""
    return (job for gpu in outlook.gpus for job in gpu.jobs)


def job_subject(state: JobState) -> Subject:
    """A job on its GPU."""
    job, gpu = state.view.job, state.gpu
    return Subject(gpu_id(gpu), job.pid, job.started_s, gpu.index, job.name, job.rank)


class Allocated(Meter):
    """The peak of allocated memory as a share of what the job can have."""

    def read(self, outlook: Outlook) -> Iterator[Reading]:
        """A reading of each job on each GPU."""
        for job in jobs_of(outlook):
            text = (
                f"allocated up to {format_bytes(job.peak_bytes)} of the "
                f"{format_bytes(job.limit_bytes)} that it can have"
            )
            yield Reading(job_subject(job), job.peak_bytes / job.limit_bytes, text)


class Pressure(Meter):
    """In how many samples of the window the allocator gave memory back or tried again, while it had
    reserved nearly all that it can have.

    A full cache alone is healthy. The count is of samples, not of the counters' steps: one call of
    empty_cache() gives back hundreds of segments at once.
    """

    def read(self, outlook: Outlook) -> Iterator[Reading]:
        """A reading of each job on each GPU."""
        for job in jobs_of(outlook):
            subject = job_subject(job)
            is_full = job.reserved_peak_bytes >= self.least * job.limit_bytes
            is_event = is_full and job.num_retries + job.num_frees > 0
            window = self.window(subject)
            window.add(outlook.time_s, float(is_event))
            text = (
                f"reserved {format_bytes(job.reserved_peak_bytes)} of "
                f"{format_bytes(job.limit_bytes)}; in {window.sum:.0f} samples of the last "
                f"{self.window_s:.0f} s it gave memory back to the driver or tried again"
            )
            yield Reading(subject, window.sum, text)


class Fragmentation(Meter):
    """Pieces of partly used segments as a share of reserved memory.

    Between steps most pieces of a healthy job are free, and a cache of whole segments is no loss:
    the smaller of the free pieces and of what the last step's peak left unused is counted.
    """

    def read(self, outlook: Outlook) -> Iterator[Reading]:
        """A reading of each job on each GPU."""
        for job in jobs_of(outlook):
            device, steps = job.view.device, job.view.job.step_peaks
            peak = max([job.peak_bytes, *(step.allocated_peak_bytes for step in steps[-8:])])
            unused = min(max(device.reserved_bytes - peak, 0), device.inactive_split_bytes)
            is_large = device.reserved_bytes >= self.least * job.limit_bytes
            share = unused / max(device.reserved_bytes, 1) if is_large else 0.0
            text = (
                f"{format_bytes(unused)} of {format_bytes(device.reserved_bytes)} reserved are "
                "pieces that the peak left unused and that cannot be given back"
            )
            yield Reading(job_subject(job), share, text)


class OutOfMemory(Meter):
    """How often a job ran out of memory within the window."""

    def read(self, outlook: Outlook) -> Iterator[Reading]:
        """A reading of each job on each GPU."""
        for job in jobs_of(outlook):
            window = self.window(job_subject(job))
            window.add(outlook.time_s, job.num_ooms)
            text = f"errors for want of memory in {self.window_s / 60:.3g} min: {window.sum:.0f}"
            yield Reading(job_subject(job), window.sum, text)


class Unpublished(Meter):
    """Used memory of a GPU with processes that publish nothing, as a share of all.

    What jobs hold in their caches is left out: they can give it back. A GPU whose processes all
    publish has a reading of 0: other rules look at those.
    """

    def read(self, outlook: Outlook) -> Iterator[Reading]:
        """A reading of each GPU."""
        for gpu in outlook.gpus:
            device = gpu.view.device
            yield Reading(Subject(gpu_id(device), gpu_index=device.index), *_unpublished(gpu))


def _unpublished(gpu: GpuState) -> tuple[float | None, str]:
    device, jobs = gpu.view.device, gpu.view.jobs
    if device.used_bytes is None or not device.total_bytes:
        return None, ""
    if device.processes is None and jobs:
        return None, ""
    if device.processes is not None and not gpu.view.others:
        return 0.0, "every process publishes its memory"
    used = device.used_bytes - sum(job.cached_bytes for job in jobs)
    text = (
        f"used {format_bytes(used)} of {format_bytes(device.total_bytes)}; processes that publish "
        "nothing may hold some of it in a cache"
    )
    return used / device.total_bytes, text
