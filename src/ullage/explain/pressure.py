"""The cost of pressure on the allocator: step times, retries, cudaFrees and fragmentation over a
recorded run, requests, and the memory of token generation.

    report = explain_pressure(record.measured.pressure)
    report.sentence     # "6 of 24 steps had a retry: their median is 2.3 times that of the others"

Percentiles are those of counted bins, to `ullage.log.durations.RELATIVE_ERROR`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from ullage.ground.protocol.plain import As, Mark, figure
from ullage.log.durations import RELATIVE_ERROR, Durations, sum_up
from ullage.log.model import Record
from ullage.log.pressure import MeasuredPressure, RequestRow, Window

MAX_ROWS = 20
_FEW = 5
_SAME = 0.05  # a ratio of medians this close to 1 is none


@dataclass(frozen=True, slots=True)
class Percentiles:
    """The percentiles of `num` durations."""

    num: int
    p50_s: Annotated[float, As("p50")]
    p90_s: Annotated[float, As("p90")]
    p99_s: Annotated[float, As("p99")]


@dataclass(frozen=True, slots=True)
class PressureRow:
    """Some steps in a row.

    Attributes:
        first, num_steps: the number of the first, and how many.
        began_s, seconds: when they began, from the beginning of the recording on, and how long they
            took together.
        p50_s, p99_s: of the time of a step.
        allocated_bytes, reserved_bytes: the highest of them.
        inactive_split_bytes: the most that lay free within segments in use at the end of a step.
        num_alloc_retries: how often the allocator gave back its cache to serve a request.
        num_device_frees: how many segments were given back; None: this torch does not count them.
    """

    first: int
    num_steps: int
    began_s: float
    seconds: float
    p50_s: float
    p99_s: float
    allocated_bytes: int
    reserved_bytes: int
    inactive_split_bytes: int
    num_alloc_retries: int
    num_device_frees: int | None

    @figure
    def fragmented_frac(self) -> float:
        """The share of the reserved bytes that lay free within segments in use."""
        return self.inactive_split_bytes / self.reserved_bytes if self.reserved_bytes else 0.0


@dataclass(frozen=True, slots=True)
class RequestGroup:
    """The requests of a name: all of them, and the last ones."""

    name: str
    all: Annotated[Percentiles, As("latency_s")]
    recent: Annotated[Percentiles, As("last_latency_s")]


@dataclass(frozen=True, slots=True)
class PressureReport:
    """The answer of `explain_pressure`.

    Attributes:
        steps, recent_steps: the times of all steps and of the last ones; None: none has ended.
        rows: all steps, in about twenty rows.
        sentence: whether steps with a retry, or with a cudaFree, took longer than the others.
        requests: by name, the most frequent first.
        num_requests, last_requests: how many requests ended, and the last of them.
        growth: the number of a call of the model and the bytes allocated after it, in the request
            with the most calls of those that were alone; empty: none called it twice.
    """

    steps: Annotated[Percentiles | None, As("step_s")]
    recent_steps: Annotated[Percentiles | None, As("last_steps_s")]
    rows: Annotated[tuple[PressureRow, ...], As("windows")]
    sentence: Annotated[str, As("comparison")]
    requests: tuple[RequestGroup, ...]
    num_requests: int
    last_requests: tuple[RequestRow, ...]
    growth: Annotated[tuple[tuple[int, int], ...], Mark.NO_KEY]
    relative_error: float = round(RELATIVE_ERROR, 4)

    @property
    def generations(self) -> tuple[RequestRow, ...]:
        """The last requests that made tokens, or called the model repeatedly."""
        return tuple(row for row in self.last_requests if is_generation(row))

    @figure
    def num_alloc_retries(self) -> int:
        """The retries of all steps."""
        return sum(row.num_alloc_retries for row in self.rows)

    @figure
    def num_device_frees(self) -> int | None:
        """The cudaFrees of all steps; None: this torch does not count them."""
        counts = [row.num_device_frees for row in self.rows if row.num_device_frees is not None]
        return sum(counts) if len(counts) == len(self.rows) else None

    @property
    def call_bytes(self) -> float | None:
        """The bytes that one more call of the model keeps: the slope of `growth` from its first
        call to its last; None where there is no growth to see.
        """
        if len(self.growth) < 2:
            return None
        (first, first_bytes), (last, last_bytes) = self.growth[0], self.growth[-1]
        return (last_bytes - first_bytes) / (last - first)

    @figure
    def tokens(self) -> Mapping[str, Any] | None:
        """The growth of memory in the generation with the most calls of the model."""
        if self.call_bytes is None:
            return None
        rows = [{"call": call, "bytes": size} for call, size in self.growth]
        return {"bytes_per_call": self.call_bytes, "growth": rows}

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to show."""
        return self.steps is None and not self.requests


def explain_pressure(pressure: MeasuredPressure, max_rows: int = MAX_ROWS) -> PressureReport:
    """The pressure of a record, its steps in `max_rows` rows or fewer."""
    requests = [
        RequestGroup(name, every, recent)
        for name, times in pressure.requests.items()
        if (every := find_percentiles(times.all)) and (recent := find_percentiles(times.recent))
    ]
    windows = pressure.windows
    per_row = max(1, -(-len(windows) // max_rows))
    parts = (windows[begin : begin + per_row] for begin in range(0, len(windows), per_row))
    return PressureReport(
        steps=find_percentiles(pressure.steps.all),
        recent_steps=find_percentiles(pressure.steps.recent),
        rows=tuple(_merge(part, has_frees=pressure.has_device_frees) for part in parts),
        sentence=compare_steps(pressure),
        requests=tuple(sorted(requests, key=lambda group: (-group.all.num, group.name))),
        num_requests=pressure.num_requests,
        last_requests=pressure.last_requests,
        growth=pressure.token_growth if len(pressure.token_growth) > 1 else (),
    )


def find_pressure(record: Record | None) -> Mapping[str, PressureReport] | None:
    """The field `pressure` of a document; None: the process was not recorded on a GPU, or by a
    version that did not measure this.
    """
    pressure = None if record is None else _pressure_of(record)
    return None if pressure is None else {"pressure": explain_pressure(pressure)}


def find_most_pressed(records: Sequence[Record]) -> Record | None:
    """The process of a job with the most retries, then with the longest step by the median; None:
    pressure was measured in none.
    """
    measured = [record for record in records if _pressure_of(record) is not None]
    return max(measured, key=_rank_pressure, default=None)


def _pressure_of(record: Record) -> MeasuredPressure | None:
    return None if record.measured is None else record.measured.pressure


def _rank_pressure(record: Record) -> tuple[int, float]:
    pressure = _pressure_of(record)
    if pressure is None:
        return -1, 0.0
    num_retries = sum(window.num_alloc_retries for window in pressure.windows)
    return num_retries, pressure.steps.all.percentile(0.5) or 0.0


def is_generation(row: RequestRow) -> bool:
    """True if a request made tokens, or called the model more than once."""
    return row.num_tokens is not None or row.num_calls > 1


def find_percentiles(durations: Durations) -> Percentiles | None:
    """The middle, the 90th and the 99th percentile; None: there are no durations."""
    p50_s, p90_s, p99_s = (durations.percentile(share) for share in (0.5, 0.9, 0.99))
    if p50_s is None or p90_s is None or p99_s is None:
        return None
    return Percentiles(durations.num, p50_s, p90_s, p99_s)


def _merge(windows: Sequence[Window], *, has_frees: bool) -> PressureRow:
    times = sum_up(window.times for window in windows)
    return PressureRow(
        first=windows[0].first,
        num_steps=sum(window.num_steps for window in windows),
        began_s=windows[0].began_s,
        seconds=sum(window.seconds for window in windows),
        p50_s=times.percentile(0.5) or 0.0,
        p99_s=times.percentile(0.99) or 0.0,
        allocated_bytes=max(window.allocated_bytes for window in windows),
        reserved_bytes=max(window.reserved_bytes for window in windows),
        inactive_split_bytes=max(window.inactive_split_bytes for window in windows),
        num_alloc_retries=sum(window.num_alloc_retries for window in windows),
        num_device_frees=sum(window.num_device_frees for window in windows) if has_frees else None,
    )


def compare_steps(pressure: MeasuredPressure) -> str:
    """One sentence: how many steps had a retry, or else a cudaFree, and how their median compares
    with that of the others. It is what was measured, and says nothing of the cause.
    """
    every = pressure.steps.all
    if not every.num:
        return "no step has ended"
    if pressure.steps.with_retry.num:
        return _compare("a retry", pressure.steps.with_retry, every)
    if pressure.steps.with_device_free.num:
        text = _compare("a cudaFree", pressure.steps.with_device_free, every)
        return f"no step had a retry; {text}"
    if not pressure.has_device_frees:
        return "no step had a retry; this torch does not count cudaFrees"
    return "no step had a retry or a cudaFree"


def _compare(what: str, part: Durations, every: Durations) -> str:
    head = f"{part.num:,} of {every.num:,} steps had {what}"
    rest = every.without(part)
    median_s, other_s = part.percentile(0.5), rest.percentile(0.5)
    if median_s is None or other_s is None:
        return f"all {every.num:,} steps had {what}: there are no others to compare with"
    its = "its time" if part.num == 1 else "their median"
    than = "that of the other" if rest.num == 1 else "the median of the others"
    ratio = median_s / other_s
    text = f"about {than}" if abs(ratio - 1) <= _SAME else f"{ratio:.2g} times {than}"
    few = "; so few steps say little" if min(part.num, rest.num) < _FEW else ""
    return f"{head}: {its} is {text}{few}"
