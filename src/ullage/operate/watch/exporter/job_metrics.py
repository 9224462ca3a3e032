"""The figures that recorded jobs publish of their allocators, as metrics.

The counters are those of a process: they begin again with another one, as Prometheus expects of
counters.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ullage.ground.protocol.job import Job
from ullage.operate.doors.metric import Point, Type, figure, known_labels, read_figures
from ullage.operate.watch.exporter.gpu_metrics import gpu_labels, owner_labels
from ullage.operate.watch.view import JobView, View

# Of a `JobDevice`.
_ALLOCATOR: Final = (
    figure("allocated_bytes", "ullage_allocated_bytes", "Allocated by the job's tensors now."),
    figure("reserved_bytes", "ullage_reserved_bytes",
           "Held by the job's allocator: allocated and cached."),
    figure("active_bytes", "ullage_active_bytes",
           "Allocated, or freed but still awaited by another stream."),
    figure("inactive_split_bytes", "ullage_fragmented_bytes",
           "Free pieces of segments that are partly in use."),
    figure("allocated_peak_bytes", "ullage_allocated_peak_bytes",
           "Most that was allocated since the job began."),
    figure("reserved_peak_bytes", "ullage_reserved_peak_bytes",
           "Most that was reserved since the job began."),
    figure("num_alloc_retries", "ullage_alloc_retries_total",
           "Times the allocator gave its cache back and tried again.", kind=Type.COUNTER),
    figure("num_ooms", "ullage_ooms_total", "Times the job ran out of memory.", kind=Type.COUNTER),
    figure("num_device_frees", "ullage_device_frees_total",
           "Segments that the allocator gave back.", kind=Type.COUNTER),
)  # fmt: skip
# Of a `JobView`.
_OUTLOOK: Final = (
    figure("limit_bytes", "ullage_limit_bytes",
           "Most that the job can allocate: reserved, and free on the GPU."),
    figure("headroom_bytes", "ullage_headroom_bytes",
           "Distance of the last step's peak to the limit."),
    figure("growth_bytes_per_step", "ullage_growth_bytes_per_step",
           "Growth of the peak of the job's steps; absent if they do not grow."),
    figure("forecast_s", "ullage_forecast_seconds",
           "Time from the last step until the growing peak reaches the limit; absent if the steps "
           "do not grow."),
)  # fmt: skip
# Of a `Job`.
_PROGRESS: Final = (
    figure("step", "ullage_step", "Steps that are finished."),
    figure("step_seconds", "ullage_step_seconds", "Duration of the last step."),
    figure("scaler_skips", "ullage_scaler_skips_total",
           "Steps that the gradient scaler skipped.", kind=Type.COUNTER),
    figure("updated_s", "ullage_job_published_timestamp_seconds",
           "When the job last published its state (s since 1970)."),
)  # fmt: skip
JOB_METRICS: Final = tuple(figure.metric for figure in (*_ALLOCATOR, *_OUTLOOK, *_PROGRESS))


def job_points(view: View, *, with_names: bool) -> Iterator[Point]:
    """The values of all jobs on all GPUs; those of a job as a whole come once.

    Args:
        view: the machine.
        with_names: whether jobs are labelled with the names of their programs.
    """
    labels_of: dict[int, dict[str, str]] = {}
    for gpu in view.gpus:
        for job in gpu.jobs:
            labels = _job_labels(job.job, with_names=with_names) | _labels_of_owner(job)
            labels_of.setdefault(job.job.pid, labels)
            of_gpu = labels | gpu_labels(gpu.device)
            yield from read_figures(_ALLOCATOR, job.device, of_gpu)
            yield from read_figures(_OUTLOOK, job, of_gpu)
    for record in view.elsewhere:
        labels = _job_labels(record, with_names=with_names)
        labels_of.setdefault(record.pid, labels)
        for device in record.devices:
            # The GPU is not among those here; the job has a number of its own for it.
            of_gpu = known_labels(UUID=device.uuid, job_device=device.index)
            yield from read_figures(_ALLOCATOR, device, labels | of_gpu)
    for record in view.sample.jobs:
        yield from read_figures(_PROGRESS, record, labels_of.get(record.pid, {}))


def _job_labels(job: Job, *, with_names: bool) -> dict[str, str]:
    return known_labels(pid=job.pid, rank=job.rank, program=job.name if with_names else None)


def _labels_of_owner(job: JobView) -> dict[str, str]:
    """Whose the job is, as the driver's list of processes and /proc tell."""
    if job.process is None:
        return {}
    labels = owner_labels(job.process, with_names=False)
    return {name: value for name, value in labels.items() if name not in {"pid", "kind"}}
