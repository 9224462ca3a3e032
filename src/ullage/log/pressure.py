"""Pressure on the allocator in a record: steps in windows, requests, and how long each took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, NamedTuple

from ullage.ground.errors import SnapshotError
from ullage.ground.protocol.plain import Mark
from ullage.log import field_checks
from ullage.log.durations import NUM_BINS, Durations
from ullage.log.record_schema import ROWS

NO_TIMES: Final = Durations(Counter())


class Window(NamedTuple):
    """Some steps in a row: the first, how many, when they began (from the beginning of the
    recording on) and how long they took together; their highest bytes; their retries and cudaFrees;
    the time of each.
    """

    first: int
    num_steps: int
    began_s: float
    seconds: float
    allocated_bytes: int
    reserved_bytes: int
    inactive_split_bytes: int
    num_alloc_retries: int
    num_device_frees: int
    times: Annotated[Durations, Mark.NO_KEY] = NO_TIMES


class StepTimes(NamedTuple):
    """The times of all steps, of the last ones, and of those with a retry or a cudaFree."""

    all: Durations
    recent: Durations
    with_retry: Durations
    with_device_free: Durations


class RequestTimes(NamedTuple):
    """The times of all requests of a name, and of the last ones."""

    all: Durations
    recent: Durations


@dataclass(frozen=True, slots=True)
class RequestRow:
    """A request: its memory is what was allocated when it began and ended, at most, and after the
    first and the last call of the model.
    """

    name: str
    began_s: float
    seconds: float
    begin_bytes: int
    end_bytes: int
    peak_bytes: int
    num_calls: int
    num_tokens: int | None
    first_call_bytes: int | None
    last_call_bytes: int | None
    num_beside: int
    has_failed: bool


@dataclass(frozen=True, slots=True)
class MeasuredPressure:
    """The pressure of a record.

    Attributes:
        num_recent: how many the last steps, or requests of a name, are at most.
        has_device_frees: whether this torch counts cudaFrees.
        windows: all steps, oldest first.
        requests: by their name.
        last_requests: of `num_requests` the last ones.
        token_growth: the number of a call of the model and the bytes allocated after it, in the
            request with the most calls of those that had none beside them.
    """

    num_recent: int
    has_device_frees: bool
    steps: StepTimes
    windows: tuple[Window, ...]
    num_requests: int
    requests: Mapping[str, RequestTimes]
    last_requests: tuple[RequestRow, ...]
    token_growth: tuple[tuple[int, int], ...]


def parse_pressure(value: object) -> MeasuredPressure | None:
    """The field of a record; None: there is none. Raises SnapshotError where it is damaged."""
    if value is None:
        return None
    fields = field_checks.typed(value, dict, "pressure")
    return MeasuredPressure(
        num_recent=field_checks.size(fields.get("num_recent", 0), "num_recent"),
        has_device_frees=fields.get("has_device_frees") is True,
        steps=StepTimes(*_parse_times(_rows(fields, "step_times"), "step_times")),
        windows=_parse_windows(fields),
        num_requests=field_checks.size(fields.get("num_requests", 0), "num_requests"),
        requests=_parse_request_times(fields),
        last_requests=field_checks.read(
            tuple[RequestRow, ...], fields.get("last_requests", ()), "last_requests"
        ),
        token_growth=field_checks.read(
            tuple[tuple[int, int], ...], fields.get("token_growth", ()), "token_growth"
        ),
    )


def _rows(fields: Mapping[str, Any], name: str) -> list[Sequence[Any]]:
    width = len(ROWS[name])
    rows = field_checks.read(tuple[Any, ...], fields.get(name, ()), name)
    return [field_checks.row(entry, width, name) for entry in rows]


def _parse_times(rows: Sequence[Sequence[Any]], name: str) -> list[Durations]:
    width = len(ROWS[name]) - (2 if name == "request_times" else 1)
    columns: list[Counter[int]] = [Counter() for _ in range(width)]
    for number, *counts in rows:
        for column, count in zip(columns, counts, strict=True):
            if count:
                column[_bin(number, name)] += field_checks.size(count, name)
    return [Durations(column) for column in columns]


def _bin(number: object, name: str) -> int:
    if field_checks.size(number, name) >= NUM_BINS:
        raise SnapshotError(f"{name} has the bin {number}; expected 0 to {NUM_BINS - 1}")
    return field_checks.size(number, name)


def _parse_windows(fields: Mapping[str, Any]) -> tuple[Window, ...]:
    rows = _rows(fields, "windows")
    times: list[Counter[int]] = [Counter() for _ in rows]
    for place, number, count in _rows(fields, "window_times"):
        if field_checks.size(place, "window_times") >= len(rows):
            raise SnapshotError(f"window_times names the window {place} of {len(rows)}")
        times[place][_bin(number, "window_times")] += field_checks.size(count, "window_times")
    return tuple(
        field_checks.read(Window, row, "windows")._replace(times=Durations(own))
        for row, own in zip(rows, times, strict=True)
    )


def _parse_request_times(fields: Mapping[str, Any]) -> Mapping[str, RequestTimes]:
    by_name: dict[str, list[Sequence[Any]]] = {}
    for name, *row in _rows(fields, "request_times"):
        by_name.setdefault(field_checks.read(str, name, "request_times"), []).append(row)
    return {
        name: RequestTimes(*_parse_times(rows, "request_times")) for name, rows in by_name.items()
    }
