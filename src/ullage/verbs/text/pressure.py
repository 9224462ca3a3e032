"""The pressure on the allocator, as recorded on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ullage.answers import block_kinds as b
from ullage.answers.plot import check_plot, write_plots
from ullage.explain.pressure import (
    Percentiles,
    PressureReport,
    PressureRow,
    RequestGroup,
    explain_pressure,
    find_most_pressed,
)
from ullage.ground.errors import SpecError
from ullage.ground.units import GIB, format_bytes
from ullage.log.model import Record
from ullage.log.pressure import RequestRow
from ullage.verbs.text.time.numbers import format_seconds, format_share

_MAX_BRIEF = 2
_MAX_GENERATIONS = 8
_NUM_POINTS = 64
_NOTES = (
    "split: free within segments in use at the end of a step, of reserved;",
    "frees: segments given back by cudaFree",
)
_GIB = b.PlotAxis("GiB")


def pressure_blocks(records: Sequence[Record]) -> Iterator[b.Block]:
    """The times of steps, what slowed them, and the requests: of the process with most retries."""
    record = find_most_pressed(records)
    report = _report(record)
    if record is not None and report is not None:
        which = _which(record, records)
        yield b.Detail(_tables(report, records, which), _lines(report, which))


def _lines(report: PressureReport, which: str) -> Iterator[b.Block]:
    if report.steps is not None and report.recent_steps is not None:
        yield _line(f"Steps{which}: {_times(report.steps)}")
        if report.num_alloc_retries or report.num_device_frees:
            yield _line(f"Pressure: {report.sentence}")
    for group in report.requests[:_MAX_BRIEF]:
        yield _line(f"Requests, {group.name}: {_times(group.all)}")
    yield from (_line(f"Generation: {text}") for text in _growth(report))


def _tables(report: PressureReport, records: Sequence[Record], which: str) -> Iterator[b.Block]:
    if report.rows:
        yield b.Title(f"Pressure on the allocator{which}")
        yield _line(report.sentence, indent=2)
        yield step_pressure_table(report.rows)
        yield from (b.Note(line, b.Tone.FAINT, indent=2) for line in _NOTES)
        yield b.SPACE
        yield _times_table("steps", [("all", report.steps), *_last(report.recent_steps, report)])
    if report.requests:
        yield b.Title("Requests")
        yield _times_table("requests", _request_rows(report.requests))
    if report.generations:
        yield b.Title("Last generations (allocated)")
        yield from (_line(text, indent=2) for text in _growth(report))
        yield generation_table(report.generations)
    yield from pressure_plots(records)


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


def _line(text: str, indent: int = 0) -> b.Note:
    return b.Note(text, indent=indent, hang=indent + 2)


def _times(times: Percentiles) -> str:
    return (
        f"{times.num:,}, p50 {format_seconds(times.p50_s)}, p90 {format_seconds(times.p90_s)}, "
        f"p99 {format_seconds(times.p99_s)}"
    )


def step_pressure_table(pressed: Sequence[PressureRow]) -> b.Table:
    """A row for some steps each."""
    rows: b.Rows = [
        [
            f"{row.first:,}",
            f"{row.began_s:,.0f} s",
            format_seconds(row.p50_s),
            format_seconds(row.p99_s),
            format_bytes(row.allocated_bytes),
            format_bytes(row.reserved_bytes),
            format_share(row.fragmented_frac, 1),
            f"{row.num_alloc_retries:,}",
            "" if row.num_device_frees is None else f"{row.num_device_frees:,}",
        ]
        for row in pressed
    ]
    return b.Table(
        [b.RIGHT] * 9,
        rows,
        ("step", "at", "p50", "p99", "allocated", "reserved", "split", "retries", "frees"),
    )


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


def _times_table(what: str, percentiles: Sequence[tuple[str, Percentiles | None]]) -> b.Table:
    rows: b.Rows = []
    for name, times in percentiles:
        if times is not None:
            seconds = (times.p50_s, times.p90_s, times.p99_s)
            rows.append([name, f"{times.num:,}", *map(format_seconds, seconds)])
    return b.Table((b.LEFT, *[b.RIGHT] * 4), rows, (what, "number", "p50", "p90", "p99"))


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


def generation_table(requests: Sequence[RequestRow]) -> b.Table:
    """The last generations: tokens or calls, and what was allocated."""
    rows: b.Rows = [
        [
            row.name,
            "" if row.num_tokens is None else f"{row.num_tokens:,}",
            f"{row.num_calls:,}" if row.num_calls else "",
            format_seconds(row.seconds),
            *map(format_bytes, (row.begin_bytes, row.peak_bytes, row.end_bytes)),
        ]
        for row in requests[-_MAX_GENERATIONS:]
    ]
    return b.Table(
        (b.LEFT, *[b.RIGHT] * 6),
        rows,
        ("request", "tokens", "calls", "time", "begin", "peak", "end"),
    )


def pressure_plots(records: Sequence[Record]) -> list[b.Plot]:
    """Plots of the process with the most retries: memory, step times, retries, cudaFrees, latencies
    of requests, and the memory of token generation. Empty: nothing was recorded.
    """
    record = find_most_pressed(records)
    pressure = None if record is None or record.measured is None else record.measured.pressure
    report = None if pressure is None else explain_pressure(pressure, _NUM_POINTS)
    if pressure is None or report is None or report.is_empty:
        return []
    plots = [*_step_plots(report)] if report.rows else []
    if report.requests:
        plots.append(_latency_plot(report, pressure.last_requests))
    if report.growth:
        points = [(calls, size / GIB) for calls, size in report.growth]
        across = b.PlotAxis("calls in the longest generation that was alone")
        plots.append(
            b.Plot([b.Series("allocated after a call of the model", points)], across, _GIB)
        )
    return plots


def _step_plots(report: PressureReport) -> Iterator[b.Plot]:
    # By the step in the middle of each row: by time, a long start would leave the rest no room.
    middles = [row.first + (row.num_steps - 1) / 2 for row in report.rows]
    step = b.PlotAxis("step", "{:,g}".format)

    def curve(name: str, values: Sequence[float], drawn: b.Drawn = b.Drawn.LINE) -> b.Series:
        widths = [row.num_steps for row in report.rows]
        return b.Series(name, [*zip(middles, values, strict=True)], drawn, width=widths)

    split = [row.inactive_split_bytes / GIB for row in report.rows]
    memory = [
        curve("reserved", [row.reserved_bytes / GIB for row in report.rows]),
        curve("allocated", [row.allocated_bytes / GIB for row in report.rows]),
        curve("free within segments in use, at the end of a step", split),
    ]
    yield b.Plot(memory, step, _GIB)
    p50, p99 = [row.p50_s for row in report.rows], [row.p99_s for row in report.rows]
    times = [curve("step time, p50", p50), curve("step time, p99", p99)]
    yield b.Plot(times, step, b.PlotAxis("seconds of a step", format_seconds, is_log=True))
    retries = [row.num_alloc_retries for row in report.rows]
    counts = [curve("retries", retries, b.Drawn.BARS)]
    if report.num_device_frees is not None:
        frees = [row.num_device_frees or 0 for row in report.rows]
        counts.insert(0, curve("cudaFrees", frees, b.Drawn.BARS))
    yield b.Plot(counts, step, b.PlotAxis("number", "{:,g}".format))


def _latency_plot(report: PressureReport, last: Sequence[RequestRow]) -> b.Plot:
    curves, marks = [], []
    for group in report.requests:
        rows = [row for row in last if row.name == group.name]
        points = [(row.began_s, row.seconds) for row in rows]
        curves.append(b.Series(f"{group.name}, the last {len(rows)}", points, b.Drawn.DOTS))
        marks += [b.PlotMark(group.all.p50_s, f"{group.name}, p50 of all")]
        marks += [b.PlotMark(group.all.p99_s, f"{group.name}, p99 of all")]
    across = b.PlotAxis("seconds since the recording began", "{:,g}".format)
    return b.Plot(curves, across, b.PlotAxis("latency", format_seconds, is_log=True, marks=marks))


def write_pressure_plot(records: Sequence[Record], title: str, path: Path, *, force: bool) -> Path:
    """Draws the pressure into a file that is replaced as a whole; returns where it is.

    Raises:
        SpecError: no step or request was recorded; or as `write_plots`.
    """
    check_plot(path)
    plots, record = pressure_plots(records), find_most_pressed(records)
    if record is None or not plots:
        raise SpecError(
            "there is nothing to draw: the file has no steps or requests with their times; record "
            "with `ullage record`, and name steps by `recording.step()` where there is no optimizer"
        )
    return write_plots(plots, f"{title}{_which(record, records)}", path, force=force)
