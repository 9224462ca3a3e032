"""The reading of a rule, and its subject.

    Reading(Subject(gpu="GPU-5d...", gpu_index=0), 0.97, "used 77.6 GiB of 80.0 GiB")

A value of None says that it cannot be known at this moment: it neither raises nor clears.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from ullage.ground.protocol.plain import As, Mark
from ullage.operate.watch.alerts.outlook import GpuState, JobState, Outlook, gpu_id


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of an incident: a GPU, a process on one, or a job.

    The UUID of the GPU, the process and the time at which its job began tell subjects apart; the
    other fields are for readers.
    """

    gpu: Annotated[str | None, As("gpu_id")] = None
    pid: int | None = None
    started_s: Annotated[float | None, Mark.NO_KEY] = None
    gpu_index: Annotated[int | None, As("gpu")] = field(default=None, compare=False)
    program: str | None = field(default=None, compare=False)
    rank: int | None = field(default=None, compare=False)

    def __str__(self) -> str:
        """For people: "GPU 0, train.py (pid 4711, rank 2)"."""
        gpu = [] if self.gpu_index is None else [f"GPU {self.gpu_index}"]
        if self.pid is None:
            return gpu[0] if gpu else "machine"
        rank = "" if self.rank is None else f", rank {self.rank}"
        return ", ".join([*gpu, f"{self.program or 'process'} (pid {self.pid}{rank})"])


@dataclass(frozen=True, slots=True)
class Reading:
    """A rule's value for a subject now; `text` says it with the figures behind it."""

    subject: Subject
    value: float | None
    text: str = ""


Measured = tuple[float | None, str]
UNKNOWN: Final[Measured] = (None, "")


class Meter:
    """Measures one rule; what it remembers of a subject is in `memory`.

    Args:
        subjects: what is measured in a sample, each with its state.
        measure: the value of one, and the figures behind it.
        window_s: over how many seconds it looks back; 0 if it does not.
        least: the least share that makes a subject matter to the rule; 0 if there is none.
    """

    def __init__(
        self,
        subjects: Callable[[Outlook], Iterator[tuple[Subject, Any]]],
        measure: Callable[[Meter, Subject, Any], Measured],
        window_s: float,
        least: float,
    ) -> None:
        self._subjects, self._measure = subjects, measure
        self.window_s = window_s
        self.least = least
        self.time_s = 0.0
        self.memory: dict[Subject, Any] = {}

    def read(self, outlook: Outlook) -> Iterator[Reading]:
        """The readings of a sample."""
        self.time_s = outlook.time_s
        for subject, state in self._subjects(outlook):
            yield Reading(subject, *self._measure(self, subject, state))

    def add(self, subject: Subject, value: float) -> Window:
        """The values of the last `window_s` seconds of a subject, with that of now."""
        if subject not in self.memory:
            self.memory[subject] = Window(self.window_s)
        window: Window = self.memory[subject]
        window.add(self.time_s, value)
        return window


def each_gpu(outlook: Outlook) -> Iterator[tuple[Subject, GpuState]]:
    """Every GPU."""
    for gpu in outlook.gpus:
        device = gpu.view.device
        yield Subject(gpu_id(device), gpu_index=device.index), gpu


def each_job(outlook: Outlook) -> Iterator[tuple[Subject, JobState]]:
    """Every job on every GPU."""
    for state in (job for gpu in outlook.gpus for job in gpu.jobs):
        job, gpu = state.view.job, state.gpu
        subject = Subject(gpu_id(gpu), job.pid, job.started_s, gpu.index, job.name, job.rank)
        yield subject, state


class Window:
    """The values of the last seconds, and their sum. A gap of half of the window empties it."""

    __slots__ = ("_seconds", "points", "sum")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.points: deque[tuple[float, float]] = deque()
        self.sum = 0.0

    def add(self, time_s: float, value: float) -> list[float]:
        """Adds a value; returns those that are too old by now."""
        if self.points and time_s - self.points[-1][0] > max(self._seconds / 2, 1.0):
            self.points.clear()
            self.sum = 0.0
        self.points.append((time_s, value))
        self.sum += value
        old = []
        while self.points[0][0] <= time_s - self._seconds:
            old.append(self.points.popleft()[1])
            self.sum -= old[-1]
        return old

    @property
    def mean(self) -> float:
        """The mean of all values; there is one at least."""
        return self.sum / len(self.points)

    @property
    def span_s(self) -> float:
        """From the first to the last value."""
        return self.points[-1][0] - self.points[0][0] if self.points else 0.0
