"""An estimate of serving as one HTML file without script or network: verdict, bar, tables.

render_serving_page(found, source)      the text of the file; the document is in it
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from ullage.estimate.serving.gpu_ranking import ServingRow
from ullage.estimate.serving.knobs import ServingKnob
from ullage.estimate.serving.serving_plan import ServingEstimate
from ullage.estimate.term import Term
from ullage.report.document.serving import serving_document
from ullage.report.page.memory_bar import Part, draw_memory, swatch
from ullage.report.palette import FREE_LOOK
from ullage.report.text.serving import look_of_part, room_rows, serving_line
from ullage.units import format_bytes
from ullage.version import __version__

if TYPE_CHECKING:
    from ullage.estimate.time.serving import ServingTime

_WORDS: Final = {"fits": "Fits", "may_fit": "May fit", "does_not_fit": "Does not fit"}
_LEGEND: Final = '<p class="legend"><span><i class="full"></i>all that the GPU has</span></p>'
_MOST_GPUS: Final = 24
_HOW: Final = (
    "Computed by ullage {version} from the model's configuration, on no GPU. Sizes are binary: "
    "1 GiB is 1,073,741,824 bytes. Where a part has an interval, its likely size is drawn, and the "
    "verdict goes by the upper end. The whole answer is in this file as JSON, in the element "
    "<code>document</code>."
)


def render_serving_page(
    serving_estimate: ServingEstimate,
    source: str,
    gpus: Sequence[ServingRow] = (),
    knobs: Sequence[ServingKnob] = (),
    *,
    time: ServingTime | None = None,
) -> str:
    """Renders the page of an estimate of serving."""
    terms = sorted(serving_estimate.terms, key=lambda term: look_of_part(term.name) is FREE_LOOK)
    parts = [Part(term.name, max(0, term.bytes), look_of_part(term.name).color) for term in terms]
    document = serving_document(serving_estimate, source, gpus, knobs)
    if time is not None:
        from ullage.report.document.time import serving_time_document

        document["time"] = serving_time_document(time)
    gpu, capacity = serving_estimate.plan.gpu, serving_estimate.capacity_bytes
    whole = sum(part.bytes for part in parts)
    total = "the GPU" if whole == capacity else "needed" if capacity else "weights"
    bar = draw_memory(parts, gpu=gpu.slug if gpu else None, capacity_bytes=capacity)
    body = [
        bar,
        _LEGEND if capacity is not None else "",
        _terms(terms, parts, whole, total),
        _room_for_requests(serving_estimate),
        _server_time(time),
        _kv_groups(serving_estimate),
        _server_knobs(knobs),
        _server_gpus(gpus, serving_estimate.plan.gpu.slug if serving_estimate.plan.gpu else None),
        _list("To know", serving_estimate.remarks),
        _list(
            "Where each part comes from",
            [f"{term.name}: {term.source}" for term in serving_estimate.terms],
        ),
    ]
    plan = serving_estimate.plan
    facts = (
        f"{serving_estimate.num_parameters:,} parameters; {plan.engine}, weights {plan.weights}, "
        f"KV cache {plan.precision}, {plan.tensor_parallel} GPU{'s' * (plan.tensor_parallel > 1)}"
    )
    return _page(
        serving_estimate.model,
        document,
        lead=serving_line(serving_estimate),
        facts=facts,
        body=body,
    )


def _kv_groups(serving_estimate: ServingEstimate) -> str:
    groups = "".join(
        f"<dt>{group.num_layers} layers</dt><dd>{escape(group.name)}: "
        f"{format_bytes(group.token_bytes)} a token, "
        f"{format_bytes(group.request_bytes)} a request</dd>"
        for group in serving_estimate.kv_groups
    )
    return f"<h2>What the layers keep</h2><dl>{groups}</dl>" if groups else ""


def _page(
    model: str, document: Mapping[str, Any], *, lead: str, facts: str, body: Sequence[str]
) -> str:
    verdict = document["verdict"]
    head, rest = _WORDS.get(verdict, "Needs"), lead
    for word in ("fits", "may fit", "does not fit", "needs"):
        if lead.startswith(word):
            rest = lead.removeprefix(word).strip(" :")
    if verdict is None and not lead.startswith("needs"):
        head, rest = "A server", lead
    # Only "<" could end the element.
    payload = json.dumps(document).replace("<", "\\u003c")
    style = (files("ullage.report") / "assets" / "estimate.css").read_text(encoding="utf-8")
    title = escape(f"{model}: {lead}")
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{style}</style></head>
<body><header><p class="over">{escape(model)}</p>
<h1 class="{verdict or "none"}">{head}</h1><p class="lead">{escape(rest)}</p>
<p class="quiet">{escape(facts)}</p></header>
<main>{"".join(body)}</main>
<footer>{_HOW.format(version=__version__)}</footer>
<script type="application/json" id="document">{payload}</script>
</body></html>
"""


def _table(heads: Sequence[str], rows: Iterable[str], *, kinds: Sequence[str]) -> str:
    legend = "".join(
        f'<th scope="col" class="{kind}">{head}</th>'
        for head, kind in zip(heads, kinds, strict=True)
    )
    return (
        f'<div class="scroll"><table><thead><tr>{legend}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _row(name: str, cells: Sequence[str], *, kinds: Sequence[str], kind: str = "") -> str:
    """A row whose first cell is its name, as HTML."""
    rest = "".join(
        f'<td class="{kind}">{cell}</td>' for cell, kind in zip(cells, kinds[1:], strict=True)
    )
    return f'<tr class="{kind}"><th scope="row">{name}</th>{rest}</tr>'


def _terms(terms: Sequence[Term], parts: Sequence[Part], whole: int, total: str) -> str:
    kinds = ("", "number", "number", "what")
    rows = []
    for number, (term, part) in enumerate(zip(terms, parts, strict=True), 1):
        interval = ""
        low, high = max(0, term.low_bytes), max(0, term.high_bytes)
        if low != high:
            interval = f"{format_bytes(low)} to {format_bytes(high)}: "
        share = f"{100 * part.bytes / whole:.1f} %"
        cells = (format_bytes(part.bytes), share, escape(interval + term.what))
        rows.append(_row(swatch(number, part.color) + escape(term.name), cells, kinds=kinds))
    rows.append(_row(total, (format_bytes(whole), "100.0 %", ""), kinds=kinds, kind="total"))
    return "<h2>What takes it</h2>" + _table(
        ("part", "likely", "share", "what it is"), rows, kinds=kinds
    )


def _server_time(time: ServingTime | None) -> str:
    if time is None:
        return ""
    from ullage.report.text.time.serving import serving_time_lines

    return _list("Time", [*serving_time_lines(time)]) + _list("The times rest on", time.basis)


def _server_gpus(rows: Sequence[ServingRow], here: str | None) -> str:
    if not rows:
        return ""
    kinds = ("", "number", "number", "number")
    cells = [
        _row(
            escape(row.gpu),
            (str(row.count), format_bytes(row.capacity_bytes), f"{row.users:,}"),
            kinds=kinds,
            kind="here" if row.gpu == here else "",
        )
        for row in [row for row in rows if row.count][:_MOST_GPUS]
    ]
    fitting = sum(row.count is not None for row in rows)
    lead = f'<p class="quiet">The users fit on up to 8 of {fitting} of the {len(rows)} GPUs.</p>'
    heads = ("GPU", "how many", "memory", "users, at least")
    return f"<h2>Which GPU</h2>{lead}{_table(heads, cells, kinds=kinds)}"


def _server_knobs(knobs: Sequence[ServingKnob]) -> str:
    if not knobs:
        return ""
    kinds = ("", "number", "number")
    cells = [
        _row(escape(knob.change), (format_bytes(knob.gain_bytes), f"{knob.users:,}"), kinds=kinds)
        for knob in knobs
    ]
    heads = ("change", "worth of cache", "users, at least")
    return f"<h2>What leaves more room</h2>{_table(heads, cells, kinds=kinds)}"


def _room_for_requests(serving_estimate: ServingEstimate) -> str:
    if not serving_estimate.users or not serving_estimate.block_bytes:
        return ""
    kinds = ("", "number", "number", "number")
    rows = [
        _row(escape(name), [format(value, how) for value in values], kinds=kinds)
        for name, values, how in room_rows(serving_estimate)
    ]
    heads = ("", "at least", "likely", "at most")
    return "<h2>Room for requests</h2>" + _table(heads, rows, kinds=kinds)


def _list(title: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    return f"<h2>{title}</h2><ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"
