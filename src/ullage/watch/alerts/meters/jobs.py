"""Meters of whole jobs: ranks that differ from the others, steps that the scaler skips."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Final

from ullage.protocol.job import Job
from ullage.units import format_bytes
from ullage.watch.alerts.outlook import Outlook
from ullage.watch.alerts.reading import Meter, Reading, Subject

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


class _Straggler(Meter):
    def read(self, outlook: Outlook) -> Iterator[Reading]:
        """A reading of each rank, if there are three at least here."""
        for ranks in _groups(outlook.sample.jobs):
            values = [self._value(job) for job in ranks]
            for job, value in zip(ranks, values, strict=True):
                subject = _subject(job)
                others = [
                    each for other, each in zip(ranks, values, strict=True)
                    if other is not job and each is not None
                ]  # fmt: skip
                if value is None or len(others) < _MIN_RANKS - 1:
                    yield Reading(subject, None)
                    continue
                middle = median(others)
                apart = value - middle
                is_odd = abs(apart) > _SPREADS * (max(others) - min(others))
                share = self._share(apart / middle) if is_odd and middle else 0.0
                yield Reading(subject, share, self._text(value, middle))

    def _value(self, job: Job) -> float | None:
        raise NotImplementedError

    def _share(self, share: float) -> float:
        raise NotImplementedError

    def _text(self, value: float, middle: float) -> str:
        raise NotImplementedError


class StragglerTime(_Straggler):
    """By what share a rank's step is slower than that of the others. Ranks that wait for each other
    in each step all take as long as the slowest: then this says nothing.
    """

    def _value(self, job: Job) -> float | None:
        return _typical(job, lambda position: job.step_peaks[position].seconds)

    def _share(self, share: float) -> float:
        return share

    def _text(self, value: float, middle: float) -> str:
        return f"its step takes {value:.3g} s, that of the other ranks {middle:.3g} s"


class StragglerMemory(_Straggler):
    """By what share a rank's peak is above or below that of the others."""

    def _value(self, job: Job) -> float | None:
        return _typical(job, lambda position: job.step_peaks[position].allocated_peak_bytes)

    def _share(self, share: float) -> float:
        return abs(share)

    def _text(self, value: float, middle: float) -> str:
        return (
            f"its peak is {format_bytes(round(value))}, that of the other ranks "
            f"{format_bytes(round(middle))}"
        )


def _typical(job: Job, of: Callable[[int], float]) -> float | None:
    """The median over the last 8 steps; None: there are fewer."""
    if len(job.step_peaks) < _NUM_STEPS:
        return None
    return median(of(-1 - back) for back in range(_NUM_STEPS))


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


class ScalerSkips(Meter):
    """The share of the last 40 to 100 steps that the gradient scaler skipped; its first 50 do not
    count.
    """

    def read(self, outlook: Outlook) -> Iterator[Reading]:
        """A reading of each job with a scaler."""
        for job in outlook.sample.jobs:
            if job.scaler_skips is None or job.step is None:
                continue
            counts: deque[tuple[int, int]] = self.memory.setdefault(_subject(job), deque())
            now = (job.step, job.scaler_skips)
            if counts and (now[0] < counts[-1][0] or now[1] < counts[-1][1]):
                counts.clear()
            if sum(now) < _FIRST_ATTEMPTS:
                yield Reading(_subject(job), None)
                continue
            if not counts or counts[-1] != now:
                counts.append(now)
            while len(counts) > 2 and _attempts(counts[1], now) >= _MAX_ATTEMPTS:
                counts.popleft()
            attempts = _attempts(counts[0], now)
            if attempts < _MIN_ATTEMPTS:
                yield Reading(_subject(job), None)
                continue
            skips = now[1] - counts[0][1]
            text = f"the gradient scaler skipped {skips} of the last {attempts} steps"
            yield Reading(_subject(job), skips / attempts, text)


def _attempts(before: tuple[int, int], now: tuple[int, int]) -> int:
    """Steps, skipped or not; where a skipped step is no step of the job's, by the skips alone."""
    return max(now[0] - before[0], now[1] - before[1])
