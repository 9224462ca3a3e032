"""Which GPUs, jobs and processes the page shows, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, TypeVar

from ullage.operate.watch.sample import ProcessSample
from ullage.operate.watch.view import GpuView, JobView, View

_T = TypeVar("_T")
_FAR: Final = float("inf")


def _headroom(gpu: GpuView) -> float:
    """The smallest distance of a job to its limit."""
    distances = (job.headroom_bytes for job in gpu.jobs)
    return min((distance for distance in distances if distance is not None), default=_FAR)


# What GPUs are sorted by: lowest first.
ORDERS: Final = MappingProxyType(
    {
        "number": lambda gpu: 0.0,
        "memory": lambda gpu: -float(gpu.device.used_bytes or 0),
        "load": lambda gpu: -float(gpu.device.gpu_frac or 0.0),
        "distance to the limit": _headroom,
    }
)
# How many processes that publish nothing are shown of a GPU.
COUNTS: Final = (10, 1_000_000, 0)


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The arrangement that the user has chosen."""

    order: str = "number"
    pattern: str = ""
    max_processes: int = COUNTS[0]

    def with_next_order(self) -> Arrangement:
        """The next of ORDERS."""
        return replace(self, order=_next(tuple(ORDERS), self.order))

    def with_next_count(self) -> Arrangement:
        """The next of COUNTS."""
        return replace(self, max_processes=_next(COUNTS, self.max_processes))

    def with_pattern(self, pattern: str) -> Arrangement:
        """Another filter; empty: none."""
        return replace(self, pattern=pattern.strip())


def _next(values: tuple[_T, ...], value: _T) -> _T:
    return values[(values.index(value) + 1) % len(values)]


def arrange(machine: View, arrangement: Arrangement) -> Iterator[tuple[int, GpuView]]:
    """The GPUs that are shown, each with its place in the sample and what is shown of it.

    A filter that fits a GPU shows all of it; else it shows the jobs and processes that it fits.
    """
    gpus = sorted(enumerate(machine.gpus), key=lambda item: ORDERS[arrangement.order](item[1]))
    words = arrangement.pattern.lower()
    for position, gpu in gpus:
        if not words or _fits(words, f"gpu {gpu.device.index}", gpu.device.name, gpu.device.uuid):
            yield position, gpu
            continue
        jobs = tuple(job for job in gpu.jobs if _fits_job(words, job))
        others = tuple(process for process in gpu.others if _fits(words, *_texts(process)))
        if jobs or others:
            yield position, replace(gpu, jobs=jobs, others=others)


def _fits_job(words: str, view: JobView) -> bool:
    texts = _texts(view.process) if view.process is not None else ()
    return _fits(words, view.job.name, str(view.job.pid), view.job.phase, *texts)


def _texts(process: ProcessSample) -> tuple[str | None, ...]:
    return (
        str(process.pid),
        process.name,
        process.user,
        process.container,
        process.container_name,
        process.pod,
        process.pod_name,
        process.pod_namespace,
        process.slurm_job,
        process.slurm_array,
    )


def _fits(words: str, *texts: str | None) -> bool:
    return any(words in text.lower() for text in texts if text)
