"""The view of `ullage capacity` of speech, pictures and indexes."""

from __future__ import annotations

from collections.abc import Iterator

from ullage.answers import block_kinds as b
from ullage.facts.gpus.catalog import label
from ullage.ground.units import format_bytes
from ullage.players.eager.workloads.answer import WorkloadEstimate
from ullage.verbs.capacity.serving_text import VERDICT_TONES
from ullage.verbs.text.terms import terms_table
from ullage.verbs.views.palette import part_look


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
        yield terms_table(place.terms, lambda term: part_look(term.name), scale)
    yield b.Title("Figures")
    rows: b.Rows = [
        [name, format_bytes(value) if unit == "bytes" else f"{value:,} {unit}"]
        for name, value, unit in estimate.figures
    ]
    yield b.Table((b.LEFT, b.RIGHT), rows)
    yield b.Title("Assumed")
    yield from (b.Note(line, b.Tone.FAINT, indent=2) for line in estimate.assumptions)
