"""Plots: as HTML and SVG without script, or into a file by matplotlib, an optional dependency.

draw_plot(Plot([Series("p50", [(0.5, 0.02), (1, 0.03)])], PlotAxis("load"), PlotAxis("seconds")))
write_plots([plot], "train.py", Path("pressure.svg"), force=False)

On a narrow screen only the shapes shrink, and the text keeps its size.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ullage.answers.block_kinds import Drawn, Plot, PlotAxis, Point, Series
from ullage.ground.errors import SpecError
from ullage.ground.files import check_writable, keep_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES: Final = (".svg", ".png", ".pdf")
# Okabe and Ito's palette: distinct under the common kinds of colour blindness.
_COLORS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_GREY: Final = "#555555"
_WIDTH_INCHES, _HEIGHT_INCHES, _PANEL_INCHES = 7.5, 4.5, 2.2
_MATPLOTLIB: Final = {
    Drawn.LINE: "o-", Drawn.DASHES: "o:", Drawn.DOTS: "o", Drawn.SQUARES: "s",
    Drawn.LARGE: "o", Drawn.CROSSES: "x",
}  # fmt: skip
_SIZE: Final = 1000
_MOST_DOTS: Final = 24
"""Points of a line that are drawn one by one; with more they would be a band."""
_ROUND: Final = (1, 2, 5, 10)
_NUM_TICKS: Final = 5


class _Scale:
    """An axis and its ends."""

    def __init__(self, axis: PlotAxis, values: Sequence[float]) -> None:
        self.axis = axis
        values = [*values, *(mark.at for mark in axis.marks)]
        low = axis.low if axis.low is not None else min(values) if axis.is_log else 0.0
        high = axis.high if axis.high is not None else max(values)
        if axis.is_log:
            low, high = low / 1.15, max(high, low) * 1.15
        self.low, self.high = low, high if high > low else low + 1.0

    def place(self, value: float) -> float:
        """Where a value is, from 0 to 1."""
        if self.axis.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> Iterator[tuple[str, str]]:
        """The values that are written: their places and texts."""
        axis, low, high = self.axis, self.low, self.high
        values = axis.ticks or (_log_ticks(low, high) if axis.is_log else _ticks(low, high))
        for value in values:
            if low <= value <= high:
                yield _percent(self.place(value)), escape(axis.tick(value))


def draw_plot(plot: Plot) -> str:
    """Draws a plot with its legend; "" where no curve has a point."""
    across, up = plot.across, plot.up
    drawn = [
        [point for point in curve.points if _is_drawn(point[0], across) and _is_drawn(point[1], up)]
        for curve in plot.curves
    ]
    points = [point for row in drawn for point in row]
    if not points:
        return ""
    wide, tall = _Scale(across, [p[0] for p in points]), _Scale(up, [p[1] for p in points])
    rows = "".join(f'<span class="level" style="bottom:{at}"></span>' for at, _ in tall.ticks())
    scale = "".join(f'<span style="bottom:{at}">{text}</span>' for at, text in tall.ticks())
    below = "".join(f'<span style="left:{at}">{text}</span>' for at, text in wide.ticks())
    flags = "".join(_flag(wide.place(mark.at), mark.text) for mark in across.marks)
    flags += "".join(
        f'<span class="level mark" style="bottom:{_percent(tall.place(mark.at))}">'
        f"<b>{escape(mark.text)}</b></span>"
        for mark in up.marks
    )
    shapes = "".join(
        _polyline(number, [(wide.place(p[0]), tall.place(p[1])) for p in row])
        for number, (row, curve) in enumerate(zip(drawn, plot.curves, strict=True))
        if curve.drawn in (Drawn.LINE, Drawn.DASHES)
    )
    dots = "".join(
        _dots(number, row, curve, wide, tall)
        for number, (row, curve) in enumerate(zip(drawn, plot.curves, strict=True))
    )
    names = ", ".join(curve.name for curve in plot.curves)
    return (
        f"<figure><figcaption>{escape(up.label)}</figcaption>"
        f'<div class="course" role="img" aria-label="{escape(f"{up.label} by {across.label}")}: '
        f'{escape(names)}"><div class="scale">{scale}</div><div class="plot">{rows}{flags}'
        f'<svg viewBox="0 0 {_SIZE} {_SIZE}" preserveAspectRatio="none">{shapes}</svg>{dots}</div>'
        f'<div class="across" aria-hidden="true">{below}<b>{escape(across.label)}</b></div></div>'
        f"{_legend(plot.curves, drawn)}</figure>"
    )


def _is_drawn(value: float, axis: PlotAxis) -> bool:
    return math.isfinite(value) and (value > 0 or not axis.is_log)


def _polyline(number: int, places: Sequence[tuple[float, float]]) -> str:
    corners = " ".join(f"{_SIZE * x:.2f},{_SIZE * (1 - y):.2f}" for x, y in places)
    return f'<polyline class="line{number}" points="{corners}"/>'


def _dots(number: int, points: Sequence[Point], curve: Series, wide: _Scale, tall: _Scale) -> str:
    """The points one by one, each with its figures."""
    is_line = curve.drawn in (Drawn.LINE, Drawn.DASHES)
    if is_line and len(points) > _MOST_DOTS:
        return ""
    kind = "dots" if is_line else curve.drawn.value
    parts = []
    for x, y, *name in points:
        figures = f"{wide.axis.tick(x)}, {tall.axis.tick(y)}"
        title = escape(": ".join([*name, figures]))
        place = f"left:{_percent(wide.place(x))};bottom:{_percent(tall.place(y))}"
        parts.append(f'<i class="mark {kind} line{number}" style="{place}" title="{title}"></i>')
    return "".join(parts)


def _flag(place: float, text: str) -> str:
    side = "before" if place > 0.6 else "after"
    return f'<span class="flag {side}" style="left:{_percent(place)}"><b>{escape(text)}</b></span>'


def _legend(curves: Sequence[Series], drawn: Sequence[Sequence[Point]]) -> str:
    names = "".join(
        f'<span><i class="key {curve.drawn.value} line{number}"></i>{escape(curve.name)}</span>'
        for number, (curve, points) in enumerate(zip(curves, drawn, strict=True))
        if points
    )
    return f'<p class="legend">{names}</p>'


def _percent(share: float) -> str:
    return f"{100 * share:.2f}%"


def _ticks(low: float, high: float) -> list[float]:
    """About five round numbers from `low` to `high`."""
    rough = (high - low) / _NUM_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in _ROUND if power * factor >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [step * number for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten, and 2 and 5 of each where there are few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if math.log10(high / low) < 2.5 else (1,)
    return [factor * 10.0**power for power in powers for factor in factors]


def check_plot(path: Path) -> None:
    """Raises SpecError if a plot could not be written, so that it does not fail after the runs."""
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


def write_plots(plots: Sequence[Plot], title: str, path: Path, *, force: bool = False) -> Path:
    """Draws plots below each other into a file that is replaced as a whole; returns where it is.

    Raises:
        SpecError: as `check_plot`; or the file exists, and not `force`.
    """
    check_plot(path)
    check_writable(path, force=force)
    from matplotlib.figure import Figure

    height = _HEIGHT_INCHES if len(plots) == 1 else 0.6 + _PANEL_INCHES * len(plots)
    figure = Figure(figsize=(_WIDTH_INCHES, height), layout="constrained")
    grid = figure.subplots(len(plots), 1, squeeze=False)
    grid[0][0].set_title(title, fontsize="small", loc="left", wrap=True)
    for (axes,), plot in zip(grid, plots, strict=True):
        _fill(axes, plot)
    with tempfile.TemporaryDirectory(prefix="ullage-") as directory:
        drawing = Path(directory, path.name)
        figure.savefig(drawing, format=path.suffix.lower().removeprefix("."), dpi=150)
        return keep_file(drawing, path, force=force)


def _fill(axes: Axes, plot: Plot) -> None:
    for number, curve in enumerate(plot.curves):
        color = _COLORS[(number if curve.color is None else curve.color) % len(_COLORS)]
        xs, ys = [point[0] for point in curve.points], [point[1] for point in curve.points]
        look: dict[str, Any] = {"color": color, "label": curve.name or "_nolegend_"}
        if curve.drawn is Drawn.BARS:
            axes.bar(xs, ys, curve.width, **look)
        else:
            size = 10 if curve.drawn is Drawn.LARGE else 3 if len(xs) > _MOST_DOTS else 5
            axes.plot(xs, ys, _MATPLOTLIB[curve.drawn], markersize=size, **look)
    for mark in plot.up.marks:
        axes.axhline(mark.at, color=_GREY, linewidth=0.8, label=mark.text or "_nolegend_")
    for mark in plot.across.marks:
        axes.axvline(mark.at, color=_GREY, linewidth=0.8, label=mark.text or "_nolegend_")
    axes.set_ylabel(plot.up.label)
    axes.set_xlabel(plot.across.label)
    if plot.across.ticks:
        axes.set_xticks(plot.across.ticks, [*map(plot.across.tick, plot.across.ticks)])
    if plot.up.is_log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize="small")
