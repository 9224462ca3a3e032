"""A search as one HTML file without script or network: the plans, and a plot of time and memory.

render_fit_page(report)         the text of the file; the document is in it
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Final

from ullage.plan.findings import Candidate, FitReport
from ullage.report.document.fit import fit_document
from ullage.report.page.plain import render_plain
from ullage.report.page.terminal_html import to_html
from ullage.report.text.fit import fit_line, print_fit
from ullage.report.text.time.numbers import format_interval
from ullage.units import GIB, format_bytes

_WIDTH, _HEIGHT, _MARGIN = 720, 320, 56
_WORDS: Final = {
    "fits": "Fits unchanged",
    "fits_under_plan": "Fits under a plan",
    "does_not_fit": "Does not fit",
    "failed": "The program failed",
}


def render_fit_page(report: FitReport) -> str:
    """Renders the page of a search."""
    document = fit_document(report)
    return render_plain(
        over=" ".join(report.program),
        word=_WORDS[document["verdict"]],
        kind="does_not_fit" if report.best is None else "fits",
        lead=fit_line(report),
        body=f"""<h2>Time against memory</h2>
<p class="quiet">Each point is a plan that no other beats on both, by the profile and the model of
costs; each square one that ran, with the likely time of the clock (its bounds are shown on it); the
large point is the best that was seen to fit, the dashed line the budget. The bounds of all plans
move together, as they share most of their kernels.</p>
{draw_front(report)}
<h2>Plans</h2><pre>{to_html(lambda console: print_fit(report, console))}</pre>""",
        document=document,
    )


def draw_front(report: FitReport) -> str:
    """Draws the Pareto front as SVG: milliseconds per step on x, used memory of the device on y."""
    if not report.front:
        return ""
    points = [(1e3 * time, used / GIB) for time, used in report.front]
    best = report.best
    runs = [candidate for candidate in report.front_of_runs if candidate.time is not None]
    chosen = runs if best is None else [*runs, best]
    ran = [(1e3 * candidate.step_s, candidate.used_bytes / GIB) for candidate in chosen]
    low, high = (end(time for time, _ in [*points, *ran]) for end in (min, max))
    top = max([report.budget_bytes / GIB, *(used for _, used in [*points, *ran])])

    def at(time: float, used: float) -> tuple[float, float]:
        x = _MARGIN + (time - low) / ((high - low) or 1.0) * (_WIDTH - 2 * _MARGIN)
        return x, _HEIGHT - _MARGIN - used / top * (_HEIGHT - 2 * _MARGIN)

    def dot(time: float, used: float) -> str:
        x, y = at(time, used)
        title = f"{time:.1f} ms, {used:.2f} GiB, by the model"
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5"><title>{title}</title></circle>'

    dots = [dot(time, used) for time, used in points]
    dots += [_square(candidate, at) for candidate in runs]
    if best is not None:
        x, y = at(1e3 * best.step_s, best.used_bytes / GIB)
        dots.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="7">{_title(best)}</circle>')
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in points))
    right, bottom, limit = (
        _WIDTH - _MARGIN,
        _HEIGHT - _MARGIN,
        at(low, report.budget_bytes / GIB)[1],
    )
    label = "Milliseconds of a step against what is used of the device"
    return f"""<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}"
 fill="currentColor" stroke="currentColor" font-size="12">
<path d="M{_MARGIN} {_MARGIN}V{bottom}H{right}" fill="none"/>
<path d="M{_MARGIN} {limit:.1f}H{right}" fill="none" stroke-dasharray="6 4"/>
<polyline points="{path}" fill="none" opacity="0.4"/>{"".join(dots)}
<g stroke="none"><text x="{_MARGIN}" y="{bottom + 20}">{low:.1f} ms</text>
<text x="{right}" y="{bottom + 20}" text-anchor="end">{high:.1f} ms a step</text>
<text x="{_MARGIN}" y="{_MARGIN - 10}">{format_bytes(int(top * GIB))} of the device</text></g>
</svg>"""


def _square(candidate: Candidate, at: Callable[[float, float], tuple[float, float]]) -> str:
    """A plan that ran."""
    x, y = at(1e3 * candidate.step_s, candidate.used_bytes / GIB)
    place = f'x="{x - 3:.1f}" y="{y - 3:.1f}" width="6" height="6"'
    return f"<rect {place}>{_title(candidate)}</rect>"


def _title(candidate: Candidate) -> str:
    """What is shown on a plan: its name, its time with the bounds, its memory."""
    ends = [candidate.step_s] if candidate.time is None else candidate.time.step
    used = format_bytes(candidate.used_bytes, 2)
    return f"<title>{escape(f'{candidate.name}: {format_interval(ends)}, {used}')}</title>"
