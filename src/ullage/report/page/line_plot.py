"""Lines over an axis as HTML and SVG without script: the pictures of a server's page.

draw_lines([Line("p50", [(0.5, 0.02), (1, 0.03)])], across=..., up=...)

On a narrow screen only the shapes shrink, and the text keeps its size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final, NamedTuple

_SIZE: Final = 1000
_MOST_DOTS: Final = 24
"""Points of a line that are drawn one by one; with more they would be a band."""
_ROUND: Final = (1, 2, 5, 10)
_NUM_TICKS: Final = 5


class Line(NamedTuple):
    """A line: its name, and points of (across, up)."""

    name: str
    points: Sequence[tuple[float, float]]


class Mark(NamedTuple):
    """A place across, and what stands there."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Axis:
    """A direction of a picture.

    Attributes:
        label: what is drawn, with its unit if `tick` does not say it.
        tick: the text of a value.
        is_log: equal steps are equal factors; all values are above 0 then.
        ticks: the values that are written; empty: round ones.
        low, high: the ends; None: those of the values, and 0 where it is not logarithmic.
    """

    label: str
    tick: Callable[[float], str]
    is_log: bool = False
    ticks: Sequence[float] = ()
    low: float | None = None
    high: float | None = None

    def span(self, values: Sequence[float]) -> tuple[float, float]:
        """The ends for some values."""
        low = self.low if self.low is not None else min(values) if self.is_log else 0.0
        high = self.high if self.high is not None else max(values)
        if self.is_log:
            return low / 1.15, max(high, low) * 1.15
        return low, high if high > low else low + 1.0

    def place(self, value: float, span: tuple[float, float]) -> float:
        """Where a value is, from 0 to 1."""
        low, high = (math.log(end) for end in span) if self.is_log else span
        at = math.log(value) if self.is_log else value
        return (at - low) / (high - low)

    def round_ticks(self, span: tuple[float, float]) -> list[float]:
        """The values that are written."""
        if self.ticks:
            return [tick for tick in self.ticks if span[0] <= tick <= span[1]]
        return _log_ticks(*span) if self.is_log else _linear_ticks(*span)


def draw_lines(lines: Sequence[Line], *, across: Axis, up: Axis, marks: Sequence[Mark] = ()) -> str:
    """Draws lines with their legend; "" where no line has a point."""
    drawn = [
        line._replace(points=[p for p in line.points if _is_drawn(p, across, up)])
        for line in lines
    ]  # fmt: skip
    points = [point for line in drawn for point in line.points]
    if not points:
        return ""
    wide, tall = (
        axis.span([point[side] for point in points]) for side, axis in enumerate((across, up))
    )
    rows = "".join(
        f'<span class="level grid" style="bottom:{_percent(up.place(tick, tall))}"></span>'
        for tick in up.round_ticks(tall)
    )
    scale = "".join(
        f'<span style="bottom:{_percent(up.place(tick, tall))}">{escape(up.tick(tick))}</span>'
        for tick in up.round_ticks(tall)
    )
    below = "".join(
        f'<span style="left:{_percent(across.place(at, wide))}">{escape(across.tick(at))}</span>'
        for at in across.round_ticks(wide)
    )
    places = [
        (n, [(across.place(x, wide), up.place(y, tall)) for x, y in line.points])
        for n, line in enumerate(drawn)
    ]
    flags = "".join(_flag(across.place(mark.at, wide), mark.text) for mark in marks)
    label = escape(f"{up.label} by {across.label}: {', '.join(line.name for line in drawn)}")
    return (
        f'<figure class="lines"><figcaption>{escape(up.label)}</figcaption>'
        f'<div class="course" role="img" aria-label="{label}"><div class="scale">{scale}</div>'
        f'<div class="plot">{rows}{flags}'
        f'<svg viewBox="0 0 {_SIZE} {_SIZE}" preserveAspectRatio="none">'
        f"{''.join(_polyline(n, row) for n, row in places)}</svg>"
        f"{''.join(_dots(n, row) for n, row in places)}</div>"
        f'<div class="across" aria-hidden="true">{below}<b>{escape(across.label)}</b></div></div>'
        f"{_legend(drawn)}</figure>"
    )


def _is_drawn(point: tuple[float, float], across: Axis, up: Axis) -> bool:
    return all(
        math.isfinite(value) and (value > 0 or not axis.is_log)
        for value, axis in zip(point, (across, up), strict=True)
    )


def _polyline(number: int, places: Sequence[tuple[float, float]]) -> str:
    corners = " ".join(f"{_SIZE * x:.2f},{_SIZE * (1 - y):.2f}" for x, y in places)
    return f'<polyline class="line{number}" points="{corners}"/>'


def _dots(number: int, places: Sequence[tuple[float, float]]) -> str:
    if len(places) > _MOST_DOTS:
        return ""
    return "".join(
        f'<i class="mark line{number}" style="left:{_percent(x)};bottom:{_percent(y)}"></i>'
        for x, y in places
    )


def _flag(place: float, text: str) -> str:
    side = "before" if place > 0.6 else "after"
    return f'<span class="flag {side}" style="left:{_percent(place)}"><b>{escape(text)}</b></span>'


def _legend(lines: Sequence[Line]) -> str:
    names = "".join(
        f'<span><i class="key line{number}"></i>{escape(line.name)}</span>'
        for number, line in enumerate(lines)
        if line.points
    )
    return f'<p class="legend">{names}</p>'


def _percent(share: float) -> str:
    return f"{100 * share:.2f}%"


def _linear_ticks(low: float, high: float) -> list[float]:
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
    ticks = [factor * 10.0**power for power in powers for factor in factors]
    return [tick for tick in ticks if low <= tick <= high]
