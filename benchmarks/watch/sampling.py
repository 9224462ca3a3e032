"""Makes samples of the logs that the programs of courses wrote, as a watcher would take them.

What the phantom knows is its own: memory, the allocator's counters, the UUID. What it has no
figures for (temperature, power, utilisation, errors) is scripted: a steady load while a job's steps
follow each other, none otherwise, and what a course adds on top (benchmarks/watch/courses.py).
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ullage.ground.protocol.job import Job, parse_job
from ullage.operate.watch.sample import DeviceSample, ProcessKind, ProcessSample, Sample

__all__ = ["Log", "load_log", "take_samples"]

_MIB = 2**20
_IDLE_AFTER_S = 90.0


@dataclass(frozen=True, slots=True)
class Log:
    """What a program published, and what the phantom's driver said was used (bytes), over time."""

    times: tuple[float, ...]
    used: tuple[int, ...]
    jobs: tuple[Job, ...]

    def at(self, time_s: float) -> int | None:
        """The position of the last state at a time; None: the program runs not yet, or no more."""
        position = bisect_right(self.times, time_s) - 1
        is_over = time_s > self.times[-1]
        return None if position < 0 or is_over else position


def load_log(path: Path) -> Log:
    """Reads a log."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return Log(
        tuple(line["time_s"] for line in lines),
        tuple(line["used_bytes"] for line in lines),
        tuple(parse_job(json.dumps(line["job"]).encode()) for line in lines),
    )


def take_samples(
    logs: Sequence[Log], interval_s: float, *, after_s: float = 180.0, is_published: bool = True
) -> Iterator[Sample]:
    """Samples from the first to the last state, and `after_s` seconds more.

    Args:
        logs: of programs on one GPU, or of ranks with one GPU each.
        interval_s: between two samples.
        after_s: how long the watcher goes on after the last program.
        is_published: whether the jobs' files are there; else the driver's figures are all.
    """
    are_ranks = logs[0].jobs[0].rank is not None
    time_s = min(log.times[0] for log in logs)
    end_s = max(log.times[-1] for log in logs) + after_s
    while time_s <= end_s:
        groups = [[log] for log in logs] if are_ranks else [list(logs)]
        devices = tuple(_device(index, group, time_s) for index, group in enumerate(groups))
        positions = [(log, log.at(time_s)) for log in logs]
        jobs = tuple(log.jobs[position] for log, position in positions if position is not None)
        if are_ranks:
            jobs = tuple(_with_uuid(job, devices) for job in jobs)
        yield Sample(time_s, "node-1", devices, jobs if is_published else ())
        time_s += interval_s


def _uuid(log: Log, index: int) -> str:
    uuid = log.jobs[0].devices[0].uuid or ""
    return uuid if index == 0 else f"{uuid[:-4]}{index:04d}"


def _with_uuid(job: Job, devices: Sequence[DeviceSample]) -> Job:
    (device,) = job.devices
    return replace(job, devices=(replace(device, uuid=devices[job.rank or 0].uuid),))


def _device(index: int, logs: Sequence[Log], time_s: float) -> DeviceSample:
    positions = [(log, log.at(time_s)) for log in logs]
    states = [(log, position) for log, position in positions if position is not None]
    total = logs[0].jobs[0].devices[0].total_bytes
    used = sum(log.used[position] for log, position in states)
    is_busy = any(time_s - log.times[position] < _IDLE_AFTER_S for log, position in states)
    processes = tuple(
        ProcessSample(log.jobs[0].pid, ProcessKind.COMPUTE, log.used[position], "python")
        for log, position in states
    )
    wave = int(time_s) % 7
    return DeviceSample(
        index=index,
        uuid=_uuid(logs[0], index),
        name="NVIDIA GeForce RTX 4090",
        total_bytes=total,
        used_bytes=used,
        free_bytes=total - used,
        gpu_frac=0.9 + wave / 100 if is_busy else 0.0,
        temperature_c=62 + wave if is_busy else 35,
        slowdown_c=90,
        shutdown_c=95,
        power_w=(320.0 if is_busy else 40.0) + 3 * wave,
        power_limit_w=450.0,
        throttle_reasons=frozenset(),
        ecc_corrected=0,
        ecc_uncorrected=0,
        processes=processes,
    )
