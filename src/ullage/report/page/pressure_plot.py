"""Draws the pressure on the allocator beside times: memory, step times, retries and cudaFrees over
the run, the latencies of requests, and the memory of token generation.

plot_pressure(records, "train.py", Path("pressure.svg"))
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ullage.errors import SpecError
from ullage.explain.pressure import PressureReport, explain_pressure, find_most_pressed
from ullage.files import check_writable, keep_file
from ullage.report.page.plot import COLORS, check_plot
from ullage.trace.model import Record
from ullage.trace.pressure import MeasuredPressure, RequestRow
from ullage.units import GIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH_INCHES, _PANEL_INCHES = 7.5, 2.2
_NUM_POINTS = 64
Draw = Callable[["Axes"], None]


def write_pressure_plot(records: Sequence[Record], title: str, path: Path, *, force: bool) -> Path:
    """Draws into a file that is replaced as a whole; returns where it is. Errors are those of
    `plot_pressure`, and SpecError for a file that exists.
    """
    check_plot(path)
    check_writable(path, force=force)
    with tempfile.TemporaryDirectory(prefix="ullage-") as directory:
        drawing = Path(directory, path.name)
        plot_pressure(records, title, drawing)
        return keep_file(drawing, path, force=force)


def plot_pressure(records: Sequence[Record], title: str, path: Path) -> None:
    """Draws the process with the most retries.

    Raises:
        SpecError: no step or request was recorded.
    """
    record = find_most_pressed(records)
    pressure = None if record is None or record.measured is None else record.measured.pressure
    report = None if pressure is None else explain_pressure(pressure, _NUM_POINTS)
    if record is None or pressure is None or report is None or report.is_empty:
        raise SpecError(
            "there is nothing to draw: the file has no steps or requests with their times; record "
            "with `ullage record`, and name steps by `recording.step()` where there is no optimizer"
        )
    if len(records) > 1:
        title = f"{title}, {'process' if record.rank is None else 'rank'} " + str(
            record.pid if record.rank is None else record.rank
        )
    _draw(title, _panels(report, pressure), path)


def _panels(report: PressureReport, pressure: MeasuredPressure) -> list[Draw]:
    panels: list[Draw] = []
    if report.rows:
        panels += [
            lambda axes: _draw_memory(axes, report),
            lambda axes: _draw_times(axes, report),
            lambda axes: _draw_counts(axes, report),
        ]
    if report.requests:
        panels.append(lambda axes: _draw_latencies(axes, report, pressure.last_requests))
    if report.growth:
        panels.append(lambda axes: _draw_growth(axes, report))
    return panels


def _draw(title: str, panels: Sequence[Draw], path: Path) -> None:
    from matplotlib.figure import Figure

    height = 0.6 + _PANEL_INCHES * len(panels)
    figure = Figure(figsize=(_WIDTH_INCHES, height), layout="constrained")
    grid = figure.subplots(len(panels), 1, squeeze=False)
    grid[0][0].set_title(title, fontsize="small", loc="left", wrap=True)
    for (axes,), draw in zip(grid, panels, strict=True):
        draw(axes)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize="small")
    figure.savefig(path, format=path.suffix.lower().removeprefix("."), dpi=150)


def _draw_memory(axes: Axes, report: PressureReport) -> None:
    for (label, values), color in zip(
        {
            "reserved": [row.reserved_bytes for row in report.rows],
            "allocated": [row.allocated_bytes for row in report.rows],
            "free within segments in use, at the end of a step": [
                row.inactive_split_bytes for row in report.rows
            ],
        }.items(),
        COLORS,
        strict=False,
    ):
        heights = [value / GIB for value in values]
        axes.plot(_middles(report), heights, ".-", color=color, label=label)
    axes.set_ylabel("GiB")
    axes.set_ylim(bottom=0)


def _draw_times(axes: Axes, report: PressureReport) -> None:
    p50 = [row.p50_s for row in report.rows]
    p99 = [row.p99_s for row in report.rows]
    axes.plot(_middles(report), p99, ".-", color=COLORS[1], label="step time, p99")
    axes.plot(_middles(report), p50, ".-", color=COLORS[0], label="step time, p50")
    axes.set_yscale("log")
    axes.set_ylabel("seconds")


def _draw_counts(axes: Axes, report: PressureReport) -> None:
    """A bar for some steps each, as wide as they are many."""
    begins = [row.first - 0.5 for row in report.rows]
    widths = [row.num_steps for row in report.rows]
    if report.num_device_frees is not None:
        frees = [row.num_device_frees or 0 for row in report.rows]
        axes.bar(begins, frees, widths, align="edge", color=COLORS[5], label="cudaFrees")
    retries = [row.num_alloc_retries for row in report.rows]
    axes.bar(begins, retries, widths, align="edge", color=COLORS[1], label="retries")
    axes.set_ylabel("number")
    axes.set_ylim(bottom=0, top=max(1, axes.get_ylim()[1]))
    axes.set_xlabel("step")


def _draw_latencies(axes: Axes, report: PressureReport, last: Sequence[RequestRow]) -> None:
    for group, color in zip(report.requests, COLORS, strict=False):
        rows = [row for row in last if row.name == group.name]
        xs, ys = [row.began_s for row in rows], [row.seconds for row in rows]
        axes.plot(xs, ys, ".", color=color, label=f"{group.name}, the last {len(rows)}")
        axes.axhline(group.all.p50_s, color=color, linewidth=0.8)
        axes.axhline(group.all.p99_s, color=color, linewidth=0.8, linestyle=":")
    axes.set_yscale("log")
    axes.set_ylabel("latency, seconds")
    axes.set_xlabel("seconds since the recording began (lines: p50, dotted p99 of all)")


def _draw_growth(axes: Axes, report: PressureReport) -> None:
    calls, sizes = zip(*report.growth, strict=True)
    heights = [size / GIB for size in sizes]
    axes.plot(calls, heights, ".-", color=COLORS[2], label="allocated after a call of the model")
    axes.set_ylabel("GiB")
    axes.set_xlabel("calls in the longest generation that was alone")


def _middles(report: PressureReport) -> list[float]:
    """The step in the middle of each row: by time, a long start would leave the rest no room."""
    return [row.first + (row.num_steps - 1) / 2 for row in report.rows]
