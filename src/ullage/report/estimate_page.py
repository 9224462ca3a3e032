"""An estimate as one HTML file without script or network: the bar, a step's course, the report.

render_estimate_page(answer)          the text of the file; the document is in it
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from typing import Final

from ullage.estimate.answer import Answer
from ullage.estimate.estimate import TrainingEstimate
from ullage.estimate.timeline import Stretch
from ullage.report.estimate import (
    estimate_document,
    estimate_line,
    look_of_term,
    print_estimate,
)
from ullage.report.palette import FREE_LOOK
from ullage.report.terminal_html import to_html
from ullage.units import format_bytes

__all__ = ["render_estimate_page"]

_WIDTH: Final = 960
_BAR_HEIGHT: Final = 44
_COURSE_HEIGHT: Final = 220
_PHASE_COLORS: Final = {"forward": "#009e73", "backward": "#d55e00", "optimizer": "#e69f00"}
_STYLE: Final = """
:root { color-scheme: light dark; --ink: #1b1b1b; --ground: #fff; --faint: #6a6a6a; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --ground: #16181c; --faint: #9aa0a6; } }
body { margin: 2rem auto; max-width: 62rem; padding: 0 1rem; background: var(--ground);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin-top: 2rem; }
svg { width: 100%; height: auto; } svg text { fill: var(--ink); font: 12px system-ui, sans-serif; }
ul { list-style: none; padding: 0; columns: 16rem; } li { break-inside: avoid; }
.key { display: inline-block; width: .8em; height: .8em; margin-right: .5em; }
pre { overflow-x: auto; font: 13px/1.4 ui-monospace, monospace; } .dim { color: var(--faint); }
.bold { font-weight: 600; } .green { color: #1a8f5c; } .red { color: #d0342c; }
"""


def render_estimate_page(answer: Answer) -> str:
    """The page of an answer."""
    one = answer.estimate
    # "<" is the one character that could end the element.
    document = json.dumps(estimate_document(answer)).replace("<", "\\u003c")
    title = escape(f"{one.model}: {estimate_line(answer)}")
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>
<body><h1>{title}</h1>
{_bar(one)}
<h2>A step, once the optimizer has its states (allocated bytes)</h2>
{_course(one)}
<h2>The report</h2>
<pre>{to_html(lambda console: print_estimate(answer, console))}</pre>
<script type="application/json" id="document">{document}</script>
</body></html>
"""


def _bar(one: TrainingEstimate) -> str:
    """The terms side by side, to scale, and what each is."""
    whole = max(one.capacity_bytes or 0, one.bytes)
    parts = [(term.name, term.bytes, look_of_term(term).color) for term in one.terms]
    if whole > one.bytes:
        parts.append((FREE_LOOK.label, whole - one.bytes, FREE_LOOK.color))
    left, drawn, keys = 0.0, [], []
    for name, size, color in parts:
        width = _WIDTH * size / whole
        told = escape(f"{name}: {format_bytes(size)}")
        drawn.append(
            f'<rect x="{left:.2f}" y="0" width="{width:.2f}" height="{_BAR_HEIGHT}" '
            f'fill="{color}"><title>{told}</title></rect>'
        )
        keys.append(f'<li><span class="key" style="background:{color}"></span>{told}</li>')
        left += width
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_BAR_HEIGHT}" role="img" '
        f'aria-label="memory at the peak, by owner">{"".join(drawn)}</svg>'
        f"<ul>{''.join(keys)}</ul>"
    )


def _course(one: TrainingEstimate) -> str:
    """A step: each stretch as wide as it is repeated, as high as its peak."""
    stretches = [stretch for stretch in one.stretches if stretch.phase in _PHASE_COLORS]
    highest = max(stretch.peak_bytes for stretch in stretches)
    wide = sum(stretch.repeats for stretch in stretches)
    drawn, left = [], 0.0
    for stretch in stretches:
        width = _WIDTH * stretch.repeats / wide
        drawn.append(_polygon(stretch, left, width, highest))
        left += width
    names = "".join(
        f'<text x="{place * _WIDTH // 3}" y="14">{name}</text>'
        f'<rect x="{place * _WIDTH // 3 + 80}" y="4" width="12" height="12" fill="{color}"/>'
        for place, (name, color) in enumerate(_PHASE_COLORS.items())
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_COURSE_HEIGHT + 30}" role="img" '
        f'aria-label="allocated memory over a step, at most {format_bytes(highest)}">{names}'
        f'<g transform="translate(0 30)">{"".join(drawn)}</g></svg>'
    )


def _polygon(stretch: Stretch, left: float, width: float, highest: int) -> str:
    """A stretch: from what is live before it to what is live after it, with its peak above."""

    def height(size: int) -> float:
        return _COURSE_HEIGHT * (1 - size / highest)

    after = stretch.start_bytes + stretch.repeats * stretch.delta_bytes
    first = stretch.start_bytes + stretch.high_bytes
    last = after - stretch.delta_bytes + stretch.high_bytes
    points = [
        (left, _COURSE_HEIGHT),
        (left, height(first)),
        (left + width, height(max(last, after))),
        (left + width, _COURSE_HEIGHT),
    ]
    told = escape(
        f"{stretch.phase}, {stretch.name or 'outside of layers'}"
        f"{f', {stretch.repeats} times' if stretch.repeats > 1 else ''}: "
        f"up to {format_bytes(stretch.peak_bytes)}"
    )
    return (
        f'<polygon points="{_pairs(points)}" fill="{_PHASE_COLORS[stretch.phase]}" '
        f'fill-opacity=".8"><title>{told}</title></polygon>'
    )


def _pairs(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
