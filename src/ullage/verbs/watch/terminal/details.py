"""All that is known of one GPU, job or process, in words; and who owns a job's memory."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ullage.ground.errors import UllageError
from ullage.operate.watch.sample import DeviceSample, ProcessSample
from ullage.operate.watch.view import GpuView, JobView
from ullage.verbs.watch.text_parts import say_duration, say_size

_RECORDS: Final = ("*.ullage", "ullage-*.pickle")
_MAX_FILES: Final = 1000
_Row = tuple[str, str]


def describe(gpu: GpuView, pid: int | None) -> list[_Row]:
    """The rows (label, value) about a GPU, or about a job or process on it."""
    jobs = [job for job in gpu.jobs if job.job.pid == pid]
    processes = [process for process in gpu.device.processes or () if process.pid == pid]
    if pid is None:
        return list(_describe_gpu(gpu.device))
    rows = [row for job in jobs for row in _describe_job(job)]
    return rows + [row for process in processes for row in _describe_process(process)]


def _describe_gpu(device: DeviceSample) -> Iterator[_Row]:
    yield "GPU", f"{device.index}, {device.name or 'name unknown'}"
    yield "UUID", device.uuid or "unknown"
    if device.is_lost:
        yield "state", "lost"
        return
    yield "memory", f"{say_size(device.used_bytes)} used of {say_size(device.total_bytes)}"
    yield "free", say_size(device.free_bytes)
    yield "of the driver", say_size(device.reserved_bytes)
    for label, share in (
        ("kernels", device.gpu_frac),
        ("SMs busy", device.sm_active_frac),
        ("SM occupancy", device.sm_occupancy_frac),
        ("DRAM bandwidth", device.dram_active_frac),
    ):
        yield label, "unknown" if share is None else f"{share:.0%}"
    for label, value, unit in (
        ("temperature", device.temperature_c, "°C"),
        ("slows down at", device.slowdown_c, "°C"),
        ("shuts down at", device.shutdown_c, "°C"),
        ("power", device.power_w, "W"),
        ("power limit", device.power_limit_w, "W"),
        ("SM clock", device.sm_clock_mhz, "MHz"),
        ("memory clock", device.memory_clock_mhz, "MHz"),
        ("ECC corrected", device.ecc_corrected, ""),
        ("ECC uncorrected", device.ecc_uncorrected, ""),
    ):
        yield label, "unknown" if value is None else f"{value:g} {unit}".rstrip()
    reasons = device.throttle_reasons
    yield "throttled by", "unknown" if reasons is None else ", ".join(sorted(reasons)) or "nothing"


def _describe_job(view: JobView) -> Iterator[_Row]:
    job, device = view.job, view.device
    yield "job", job.name
    if job.rank is not None:
        yield "rank", f"{job.rank} of {job.world_size}"
    yield "phase", job.phase or "none published"
    yield "step", "none yet" if job.step is None else str(job.step)
    peak = say_size(device.allocated_peak_bytes)
    yield "allocated", f"{say_size(device.allocated_bytes)}, at most {peak}"
    yield "reserved", say_size(device.reserved_bytes)
    yield "fragmented", say_size(device.inactive_split_bytes)
    yield "limit", say_size(view.limit_bytes)
    yield "to the limit", say_size(view.headroom_bytes)
    if view.forecast is None:
        yield "forecast", "none: the steps' peaks do not grow"
    else:
        growth = say_size(round(view.forecast.bytes_per_step))
        duration = say_duration(view.forecast.seconds)
        yield "forecast", f"full in {duration}: {growth} more with each step"
    yield "retries", f"{device.num_alloc_retries}, and {device.num_ooms} times out of memory"
    yield "published", f"{say_duration(view.age_s)} ago"


def _describe_process(process: ProcessSample) -> Iterator[_Row]:
    yield "process", f"{process.pid}, {process.kind.value}"
    if not process.is_own:
        yield "name", "unknown: outside this container, or hidden from this user"
    for label, value in (
        ("name", process.name),
        ("user", process.user),
        ("container", process.container_name),
        ("container ID", process.container),
        ("pod", process.pod_name),
        ("pod UID", process.pod),
        ("namespace", process.pod_namespace),
        ("Slurm job", process.slurm_job),
        ("Slurm step", process.slurm_step),
        ("Slurm array", process.slurm_array),
    ):
        if value is not None:
            yield label, value
    yield "memory", say_size(process.used_bytes)
    if process.sm_frac is not None:
        yield "busy", f"{process.sm_frac:.0%} of the last second"


def find_record(job: JobView, proc: Path = Path("/proc")) -> Path | None:
    """The newest record of a job in its working directory, written since it began; None: there is
    none that this user owns and may read.
    """
    directory = proc / str(job.job.pid) / "cwd"
    newest: tuple[float, Path] | None = None
    try:
        place = Path(os.readlink(directory))  # noqa: PTH115 - not resolved further
        files = [path for pattern in _RECORDS for path in place.glob(pattern)][:_MAX_FILES]
    except OSError:
        return None
    for path in files:
        try:
            status = path.lstat()
        except OSError:
            continue
        is_own = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
        if is_own and status.st_mtime >= job.job.started_s:
            newest = max(newest or (0.0, path), (status.st_mtime, path))
    return None if newest is None else newest[1]


def name_owners(path: Path) -> list[_Row]:
    """Who owned the memory at the peak of a record, the largest first; takes seconds."""
    from ullage.verbs.explain.function import explain_file

    rows: list[_Row] = [("record", path.name)]
    try:
        report = explain_file(path).report
    except (UllageError, OSError) as error:
        return [*rows, ("unreadable", str(error))]
    for device in report.devices:
        owners = sorted(device.owners_at_peak.items(), key=lambda item: -item[1])
        rows += [
            (category.value.replace("_", " "), say_size(size)) for category, size in owners if size
        ]
    return rows if len(rows) > 1 else [*rows, ("owners", "none: it holds no device memory")]
