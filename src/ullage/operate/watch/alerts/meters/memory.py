"""Measures memory: what jobs have allocated and reserved, and what other processes use."""

from __future__ import annotations

from ullage.ground.units import format_bytes
from ullage.operate.watch.alerts.outlook import GpuState, JobState
from ullage.operate.watch.alerts.reading import UNKNOWN, Measured, Meter, Subject


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
