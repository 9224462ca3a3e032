"""Measures whole jobs: ranks that differ from the others, steps that the scaler skips."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Final

from ullage.ground.protocol.job import Job, StepPeak
from ullage.ground.units import format_bytes
from ullage.operate.watch.alerts.outlook import Outlook
from ullage.operate.watch.alerts.reading import UNKNOWN, Measured, Meter, Subject

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
