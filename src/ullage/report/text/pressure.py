"""The pressure on the allocator in reports of what was recorded on a GPU: a few lines, or the whole
table.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rich.console import JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from ullage.explain.pressure import (
    Percentiles,
    PressureReport,
    PressureRow,
    RequestGroup,
    explain_pressure,
    find_most_pressed,
)
from ullage.report.terminal import make_grid
from ullage.report.text.time.numbers import format_seconds, format_share
from ullage.trace.model import Record
from ullage.trace.pressure import RequestRow
from ullage.units import format_bytes

_MAX_BRIEF = 2
_MAX_GENERATIONS = 8
_NOTE = """  split: free within segments in use at the end of a step, of reserved;
  frees: segments given back by cudaFree"""
_RIGHT: tuple[JustifyMethod, ...] = ("right",)


def brief_pressure(records: Sequence[Record], width: int) -> Iterator[RenderableType]:
    """A line of the times of steps, one of what slowed them if anything may have, and one of each
    of the most frequent requests: of the process with the most retries.
    """
    record = find_most_pressed(records)
    report = _report(record)
    if record is None or report is None:
        return
    if report.steps is not None and report.recent_steps is not None:
        yield _line(f"Steps{_which(record, records)}: {_times(report.steps)}", width)
        if report.num_alloc_retries or report.num_device_frees:
            yield _line(f"Pressure: {report.sentence}", width)
    for group in report.requests[:_MAX_BRIEF]:
        yield _line(f"Requests, {group.name}: {_times(group.all)}", width)
    for text in _growth(report):
        yield _line(f"Generation: {text}", width)


def full_pressure(records: Sequence[Record], width: int) -> Iterator[RenderableType]:
    """The table of the steps, of the requests, and of the last generations."""
    record = find_most_pressed(records)
    report = _report(record)
    if record is None or report is None:
        return
    if report.rows:
        yield Text(f"\nPressure on the allocator{_which(record, records)}", style="bold")
        yield _line(f"  {report.sentence}", width)
        yield step_pressure_table(report.rows)
        yield Text(f"{_NOTE}\n", style="dim")
        yield _times_table("steps", [("all", report.steps), *_last(report.recent_steps, report)])
    if report.requests:
        yield Text("\nRequests", style="bold")
        yield _times_table("requests", _request_rows(report.requests))
    if report.generations:
        yield Text("\nLast generations (allocated)", style="bold")
        for text in _growth(report):
            yield _line(f"  {text}", width)
        yield generation_table(report.generations)


def _report(record: Record | None) -> PressureReport | None:
    if record is None or record.measured is None or record.measured.pressure is None:
        return None
    report = explain_pressure(record.measured.pressure)
    return None if report.is_empty else report


def _which(record: Record, records: Sequence[Record]) -> str:
    """Whose it is, where there are several processes."""
    if len(records) < 2:
        return ""
    return f", process {record.pid}" if record.rank is None else f", rank {record.rank}"


def _line(text: str, width: int) -> Text:
    indent = " " * (len(text) - len(text.lstrip()))
    lines = textwrap.wrap(text, width, subsequent_indent=f"{indent}  ", drop_whitespace=True)
    return Text("\n".join(lines))


def _times(times: Percentiles) -> str:
    return (
        f"{times.num:,}, p50 {format_seconds(times.p50_s)}, p90 {format_seconds(times.p90_s)}, "
        f"p99 {format_seconds(times.p99_s)}"
    )


def step_pressure_table(rows: Sequence[PressureRow]) -> Table:
    """A row for some steps each."""
    table = make_grid(*_RIGHT * 9)
    table.add_row("  step", "at", "p50", "p99", "allocated", "reserved", "split", "retries",
                  "frees", style="dim")  # fmt: skip
    for row in rows:
        table.add_row(
            f"  {row.first:,}",
            f"{row.began_s:,.0f} s",
            format_seconds(row.p50_s),
            format_seconds(row.p99_s),
            format_bytes(row.allocated_bytes),
            format_bytes(row.reserved_bytes),
            format_share(row.fragmented_frac, 1),
            f"{row.num_alloc_retries:,}",
            "" if row.num_device_frees is None else f"{row.num_device_frees:,}",
        )
    return table


def _last(recent: Percentiles | None, report: PressureReport) -> list[tuple[str, Percentiles]]:
    """The last steps, where they are not all."""
    if recent is None or report.steps is None or recent.num == report.steps.num:
        return []
    return [(f"last {recent.num:,}", recent)]


def _request_rows(groups: Sequence[RequestGroup]) -> list[tuple[str, Percentiles | None]]:
    rows: list[tuple[str, Percentiles | None]] = []
    for group in groups:
        rows.append((group.name, group.all))
        if group.all.num > group.recent.num:
            rows.append((f"{group.name}, last {group.recent.num:,}", group.recent))
    return rows


def _times_table(what: str, rows: Sequence[tuple[str, Percentiles | None]]) -> Table:
    table = make_grid("left", "right", "right", "right", "right")
    table.add_row(f"  {what}", "number", "p50", "p90", "p99", style="dim")
    for name, times in rows:
        if times is not None:
            seconds = (times.p50_s, times.p90_s, times.p99_s)
            table.add_row(f"  {name}", f"{times.num:,}", *map(format_seconds, seconds))
    return table


def _growth(report: PressureReport) -> Iterator[str]:
    """How memory grew in the generation with the most calls of the model."""
    if report.call_bytes is None:
        return
    (_, first_bytes), (calls, last_bytes) = report.growth[0], report.growth[-1]
    yield (
        f"{format_bytes(round(report.call_bytes))} a call of the model: "
        f"{format_bytes(first_bytes)} after the first, {format_bytes(last_bytes)} after call "
        f"{calls:,}"
    )


def generation_table(rows: Sequence[RequestRow]) -> Table:
    """The last generations: tokens or calls, and what was allocated."""
    table = make_grid("left", *_RIGHT * 6)
    table.add_row("  request", "tokens", "calls", "time", "begin", "peak", "end", style="dim")
    for row in rows[-_MAX_GENERATIONS:]:
        table.add_row(
            f"  {row.name}",
            "" if row.num_tokens is None else f"{row.num_tokens:,}",
            f"{row.num_calls:,}" if row.num_calls else "",
            format_seconds(row.seconds),
            *map(format_bytes, (row.begin_bytes, row.peak_bytes, row.end_bytes)),
        )
    return table
