"""A server's run as one HTML file without script or network: latencies, load, cache, memory.

render_serve_page(report)       the text of the file; the document is in it
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from typing import Final

from ullage.report.document.serve import serve_document
from ullage.report.page.line_plot import Axis, Line, Mark, draw_lines
from ullage.report.page.memory_bar import Part, draw_memory, swatch
from ullage.report.palette import CATEGORY_LOOKS, CONTEXT_LOOK, FREE_LOOK
from ullage.report.text.serve import basis_line, knee_line, remark_lines, serve_line
from ullage.report.text.time.numbers import format_seconds
from ullage.serve.cache_bytes import real_cache
from ullage.serve.curve import Curve, CurvePoint
from ullage.serve.measures import ClassMeasures, OccupancyRow, Percentiles
from ullage.serve.outcome import Levels
from ullage.serve.report import ServeReport
from ullage.trace.category import Category
from ullage.units import format_bytes
from ullage.version import __version__

_PERCENTILES: Final = ("p50", "p90", "p99")
_KINDS: Final = ("", "number", "number", "number", "number")
_HOW: Final = (
    "Computed by ullage {version}: the engine ran on a simulated GPU, in virtual time. Sizes are "
    "binary. A percentile of a request is over the answered ones. The whole answer is in this file "
    "as JSON, in the element <code>document</code>."
)
_KNEE: Final = (
    "The knee is the load with the most answers a second for each second of their mean time "
    "(Kleinrock's power), of the loads that were run. Above what the server can answer, latencies "
    "grow for as long as the traffic lasts."
)


def render_serve_page(report: ServeReport) -> str:
    """Renders the page."""
    served = report.served
    outcome = served.outcome
    verdict = "bad" if outcome.num_stuck or outcome.rejected else "good"
    document = json.dumps(serve_document(report)).replace("<", "\\u003c")
    style = "".join(
        (files("ullage.report") / "assets" / name).read_text(encoding="utf-8")
        for name in ("estimate.css", "serve.css")
    )
    command, lead = escape(" ".join(served.command)), serve_line(report)
    share = f"{outcome.is_answered.sum():,} of {len(outcome.traffic):,} answered"
    rest = lead.partition(", ")[2]
    facts = escape(
        f"{served.gpu}, {outcome.engine.name} {outcome.engine.version}; {outcome.traffic.source}"
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{command}: {escape(lead)}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{style}</style></head>
<body><header><p class="over"><code>{command}</code></p>
<h1 class="{verdict}">{share}</h1><p class="lead">{escape(rest)}</p>
<p class="quiet">{facts}</p></header>
<main>{"".join(_parts(report))}</main>
<footer>{_HOW.format(version=__version__)}</footer>
<script type="application/json" id="document">{document}</script>
</body></html>
"""


def _parts(report: ServeReport) -> Iterator[str]:
    curve, measures = report.curve, report.measures
    yield "".join(f'<p class="warn">{escape(line)}</p>' for line in remark_lines(report))
    yield _memory(report)
    yield "<h2>Latency</h2>" + _latencies(measures.classes, has_slo=report.slo is not None)
    if curve is not None:
        yield _by_load(curve, report)
    yield _by_occupancy(measures.by_occupancy if curve is None else curve.by_occupancy)
    yield _over_time(report.served.outcome.levels)
    yield f"<h2>The figures rest on</h2><p>{escape(basis_line(report))}.</p>"


def _memory(report: ServeReport) -> str:
    engine = report.served.outcome.engine
    outside = engine.device_used_bytes - engine.weights_bytes - engine.kv_cache_bytes
    step_bytes = min(engine.peak_activation_bytes, max(0, outside))
    rest = max(0, outside - step_bytes)
    looks = CATEGORY_LOOKS
    parts = [
        Part("weights", engine.weights_bytes, looks[Category.PARAMETER].color),
        Part("cache", engine.kv_cache_bytes, looks[Category.KV_CACHE].color),
        Part("step and graphs", step_bytes, looks[Category.ACTIVATION].color),
        Part("context and libraries", rest, CONTEXT_LOOK.color),
        Part("free", max(0, engine.device_bytes - engine.device_used_bytes), FREE_LOOK.color),
    ]
    notes = {
        "step and graphs": "the profiled step, with the graphs as the engine estimates them",
        "cache": (
            f"{engine.kv_cache_tokens:,} tokens in {engine.num_blocks:,} blocks, "
            f"{engine.max_concurrency:.2f} requests of {engine.max_model_len:,}"
        ),
    }
    cache = real_cache(engine, report.served.gpu)
    if cache is not None:
        notes["cache"] += (
            f"; on a real GPU {cache.low_tokens:,} to {cache.high_tokens:,}, as kernels take memory"
        )
    rows = [
        f'<tr><th scope="row">{swatch(number, part.color)}{part.name}</th>'
        f'<td class="number">{format_bytes(part.bytes, 2)}</td>'
        f'<td class="what">{escape(notes.get(part.name, ""))}</td></tr>'
        for number, part in enumerate(parts, 1)
    ]
    bar = draw_memory(parts, gpu=report.served.gpu, capacity_bytes=engine.device_bytes)
    return f'{bar}<div class="scroll"><table><tbody>{"".join(rows)}</tbody></table></div>'


def _latencies(classes: Sequence[ClassMeasures], *, has_slo: bool) -> str:
    heads = ["", *_PERCENTILES, *(["good"] if has_slo else [])]
    rows = []
    for each in classes:
        name = "all requests" if each.name == "all" else each.name
        good = [] if each.goodput_frac is None else [f"{100 * each.goodput_frac:.1f} %"]
        rows.append(_row(f"{name}, {each.num_answered:,} answered", ["", "", "", *good], "here"))
        for label, values in (
            ("to the first token", each.ttft_s),
            ("for each token after", each.tpot_s),
            ("to the last token", each.e2e_s),
            ("in the queue", each.queue_s),
        ):
            rows.append(_row(label, [*map(_seconds, values), *([""] if has_slo else [])]))
    return _table(heads, rows)


def _by_load(curve: Curve, report: ServeReport) -> str:
    loads = [point.load for point in curve.points]
    across = Axis(
        "times the traffic's rate", "{:g}".format, is_log=max(loads) >= 4 * min(loads), ticks=loads
    )  # fmt: skip
    marks = [Mark(curve.knee.load, "knee")]
    everyone: list[tuple[CurvePoint, ClassMeasures]] = [
        (point, point.measures.classes[0]) for point in curve.points
    ]
    pictures = [
        _percentile_lines(
            [(point.load, each.ttft_s) for point, each in everyone], across,
            "time to the first token", marks,
        ),
        _percentile_lines(
            [(point.load, each.tpot_s) for point, each in everyone], across,
            "time for each token after", marks,
        ),
        draw_lines(
            [
                Line("answered", [(p.load, p.measures.requests_per_s) for p in curve.points]),
                Line("within the objective", _good(curve)),
                Line("sent", [(p.load, p.offered_per_s or float("nan")) for p in curve.points]),
            ],
            across=across, up=Axis("requests a second", "{:,g}".format), marks=marks,
        ),
        draw_lines(
            [
                Line("at most", [(p.load, 100 * p.usage_peak_frac) for p in curve.points]),
                Line("on average", [(p.load, 100 * p.usage_mean_frac) for p in curve.points]),
            ],
            across=across, up=Axis("cache in use, %", "{:g}".format, high=100.0), marks=marks,
        ),
    ]  # fmt: skip
    lead = f"<p>{escape(knee_line(curve))}.</p>"
    if report.slo is not None:
        lead += f'<p class="quiet">The objective: {escape(report.slo.text())}.</p>'
    return f'<h2>By load</h2>{lead}<p class="quiet">{_KNEE}</p>{"".join(pictures)}'


def _good(curve: Curve) -> list[tuple[float, float]]:
    rates = [(point.load, point.measures.good_requests_per_s) for point in curve.points]
    return [(load, rate) for load, rate in rates if rate is not None]


def _by_occupancy(rows: Sequence[OccupancyRow]) -> str:
    if len(rows) < 2:
        return ""
    across = Axis("% of the cache in use at the arrival", "{:g}".format, high=100.0)
    middles = [50 * (row.low_frac + row.high_frac) for row in rows]
    pictures = [
        _percentile_lines(
            list(zip(middles, (row.ttft_s for row in rows), strict=True)), across,
            "time to the first token",
        ),
        _percentile_lines(
            list(zip(middles, (row.tpot_s for row in rows), strict=True)), across,
            "time for each token after",
        ),
    ]  # fmt: skip
    cells = [
        _row(
            f"{100 * row.low_frac:.0f} to {100 * row.high_frac:.0f} %",
            [f"{row.num_requests:,}", *map(_seconds, row.ttft_s)],
        )
        for row in rows
    ]
    heads = ("cache in use", "requests", *(f"first, {name}" for name in _PERCENTILES))
    return f"<h2>By the cache's occupancy</h2>{''.join(pictures)}{_table(heads, cells)}"


def _over_time(levels: Levels) -> str:
    if len(levels.time_s) < 2:
        return ""
    across = Axis("seconds of the traffic", "{:,g}".format)
    times = levels.time_s.tolist()

    def line(name: str, values: Sequence[float]) -> Line:
        return Line(name, list(zip(times, values, strict=True)))

    requests = draw_lines(
        [line("running", levels.running.tolist()), line("waiting", levels.waiting.tolist())],
        across=across, up=Axis("requests", "{:,g}".format),
    )  # fmt: skip
    cache = draw_lines(
        [line("in use", (100 * levels.usage_frac).tolist())],
        across=across, up=Axis("cache in use, %", "{:g}".format, high=100.0),
    )  # fmt: skip
    return f"<h2>Over time</h2>{requests}{cache}"


def _percentile_lines(
    rows: Sequence[tuple[float, Percentiles]], across: Axis, label: str, marks: Sequence[Mark] = ()
) -> str:
    """A line for each percentile; a logarithmic axis, since the last is far above the first."""
    lines = []
    for index, name in enumerate(_PERCENTILES):
        points = [(at, values[index]) for at, values in rows]
        lines.append(Line(name, [(at, value) for at, value in points if value is not None]))
    up = Axis(label, format_seconds, is_log=True)
    return draw_lines(lines, across=across, up=up, marks=marks)


def _seconds(value: float | None) -> str:
    return "-" if value is None else format_seconds(value)


def _row(name: str, cells: Sequence[str], kind: str = "") -> str:
    rest = "".join(f'<td class="number">{escape(cell)}</td>' for cell in cells)
    return f'<tr class="{kind}"><th scope="row">{escape(name)}</th>{rest}</tr>'


def _table(heads: Sequence[str], rows: Sequence[str]) -> str:
    legend = "".join(
        f'<th scope="col" class="{kind}">{head}</th>'
        for head, kind in zip(heads, _KINDS[: len(heads)], strict=True)
    )
    return (
        f'<div class="scroll"><table><thead><tr>{legend}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )
