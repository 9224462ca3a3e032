"""Draws reports into a file with matplotlib, an optional dependency: pip install 'ullage[plot]'.

plot_sweep(report, Path("sweep.svg"))
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ullage.errors import SpecError
from ullage.explain.compare.sweep import Point, SweepReport, parse_number
from ullage.units import GIB

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".png", ".pdf")
# Okabe and Ito's palette, as in palette.py: distinct under the common kinds of colour blindness.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_SIZE_INCHES = (7.5, 4.5)


def check_plot(path: Path) -> None:
    """Raises SpecError if a plot could not be drawn, so that it does not fail after the runs."""
    if path.suffix.lower() not in SUFFIXES:
        raise SpecError(
            f"{path.name!r} has no ending of a picture that is known; expected one of "
            f"{', '.join(SUFFIXES)}"
        )
    try:
        is_there = find_spec("matplotlib") is not None
    except ValueError:  # somebody blocked the import
        is_there = False
    if not is_there:
        raise SpecError(
            "a plot needs matplotlib, which is not installed; pip install 'ullage[plot]'"
        )


def plot_sweep(report: SweepReport, path: Path) -> None:
    """Draws the peaks of every run: over the first variable with several values if that is numeric,
    else as bars.
    """
    figure, axes = empty_plot(" ".join(report.template))
    axis = _numeric_variable(report)
    if axis is None:
        _draw_bars(axes, report)
    else:
        _draw_curves(axes, report, axis)
    save_plot(figure, axes, path)


def empty_plot(title: str) -> tuple[Figure, Axes]:
    """A figure with a title, and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, fontsize="small", loc="left", wrap=True)
    return figure, axes


def save_plot(figure: Figure, axes: Axes, path: Path) -> None:
    """Writes a figure whose vertical axis is memory."""
    axes.set_ylabel("GiB")
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize="small")
    figure.savefig(path, format=path.suffix.lower().removeprefix("."), dpi=150)


def _numeric_variable(report: SweepReport) -> str | None:
    for name, values in report.variables:
        if len(values) > 1 and all(parse_number(value) is not None for value in values):
            return name
    return None


def _draw_curves(axes: Axes, report: SweepReport, axis: str) -> None:
    """Draws a curve of allocated memory and one of the whole device for each setting of the other
    variables.
    """
    groups: dict[str, list[Point]] = {}
    for point in report.points:
        rest = [f"{name}={value}" for name, value in point.setting.values if name != axis]
        rest += [point.setting.gpu.slug] if len(report.gpus) > 1 else []
        groups.setdefault(", ".join(rest), []).append(point)
    for number, (where, members) in enumerate(groups.items()):
        color, which = COLORS[number % len(COLORS)], f" ({where})" if where else ""
        fitting = sorted((point for point in members if point.fits), key=lambda p: _x(p, axis))
        xs = [_x(point, axis) for point in fitting]
        used = [point.used_bytes / GIB for point in fitting]
        axes.plot(xs, used, "o-", color=color, label=f"whole device{which}")
        allocated = [point.allocated_bytes / GIB for point in fitting]
        axes.plot(xs, allocated, "o:", color=color, label=f"allocated{which}")
        over = [point for point in members if not point.fits]
        tops = [point.setting.gpu.total_bytes / GIB for point in over]
        axes.plot([_x(point, axis) for point in over], tops, "x", color=color)
    axes.set_xlabel(axis)
    if not report.is_unlimited:
        for gpu in report.gpus:
            label = f"{gpu.slug} (a cross does not fit)"
            axes.axhline(gpu.total_bytes / GIB, color="#555555", linewidth=0.8, label=label)


def _draw_bars(axes: Axes, report: SweepReport) -> None:
    """Draws a bar for each run, with the device's size as a mark above it."""
    names = [
        "\n".join([*(value for _, value in point.setting.values), point.setting.gpu.slug])
        for point in report.points
    ]
    heights = [point.used_bytes / GIB if point.fits else 0.0 for point in report.points]
    axes.bar(names, heights, color=COLORS[0], label="whole device")
    if not report.is_unlimited:
        totals = [point.setting.gpu.total_bytes / GIB for point in report.points]
        axes.plot(names, totals, "_", color="#555555", markersize=24, label="the GPU's memory")
    for name, point in zip(names, report.points, strict=True):
        if not point.fits:
            axes.annotate("does not fit", (name, 0), rotation=90, ha="center", va="bottom")


def _x(point: Point, axis: str) -> float:
    value: Any = dict(point.setting.values)[axis]
    return float(value)
