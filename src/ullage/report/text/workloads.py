"""The view of `ullage estimate --speech`, `--diffusion` and `--index`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ullage.answers import block_kinds as b
from ullage.estimate.term import Term
from ullage.estimate.workloads.answer import WorkloadEstimate
from ullage.gpus.catalog import label
from ullage.report.palette import CATEGORY_LOOKS, CONTEXT_LOOK, Look
from ullage.report.text.serving import VERDICT_TONES
from ullage.report.text.terms import terms_table
from ullage.trace.category import Category
from ullage.units import format_bytes

_LOOKS: Final = {
    "weights": CATEGORY_LOOKS[Category.PARAMETER],
    "cross-attention": CATEGORY_LOOKS[Category.KV_CACHE],
    "text": CATEGORY_LOOKS[Category.KV_CACHE],
    "context": CONTEXT_LOOK,
}


def workload_line(estimate: WorkloadEstimate) -> str:
    """The result, in one line."""
    return _headline(estimate).plain


def _headline(estimate: WorkloadEstimate) -> b.Headline:
    verdict = estimate.verdict
    sizes = ", ".join(
        f"{format_bytes(place.bytes)} of {place.name}"
        + (f" ({format_bytes(place.capacity_bytes)})" if place.capacity_bytes else "")
        for place in estimate.places
    )
    if verdict is None:
        return b.Headline.of(f"needs {sizes}", b.Tone.STRONG)
    where = f" on {label(estimate.gpu)}" if estimate.gpu else ""
    tone = VERDICT_TONES[verdict]
    return b.Headline((b.Word(verdict.label, tone), b.Word(f"{where}: needs {sizes}")))


def workload_blocks(estimate: WorkloadEstimate) -> Iterator[b.Block]:
    """The memory of each place, the figures, and what is assumed."""
    yield _headline(estimate)
    yield b.Note(estimate.subject, b.Tone.FAINT, indent=2)
    for place in estimate.places:
        yield b.Title(place.name)
        scale = max(term.bytes for term in place.terms)
        yield terms_table(place.terms, _look, scale)
    yield b.Title("Figures")
    rows: b.Rows = [
        [name, format_bytes(value) if unit == "bytes" else f"{value:,} {unit}"]
        for name, value, unit in estimate.figures
    ]
    yield b.Table((b.LEFT, b.RIGHT), rows)
    yield b.Title("Assumed")
    yield from (b.Note(line, b.Tone.FAINT, indent=2) for line in estimate.assumptions)


def _look(term: Term) -> Look:
    return _LOOKS.get(term.name, Look(term.name, "#999999"))
