"""The text report of `ullage estimate --speech`, `--diffusion` and `--index`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.console import Console, RenderableType
from rich.text import Text

from ullage.estimate.term import Term
from ullage.estimate.workloads.answer import WorkloadEstimate
from ullage.gpus.catalog import label
from ullage.report.palette import CATEGORY_LOOKS, CONTEXT_LOOK, Look
from ullage.report.terminal import bar_mark, make_grid, print_parts, render, terms_table
from ullage.report.text.serving import VERDICT_STYLES
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


def render_workload(estimate: WorkloadEstimate, width: int = 80) -> str:
    """The answer as a text without colour, `width` columns wide."""
    return render(lambda console: print_workload(estimate, console), width)


def print_workload(estimate: WorkloadEstimate, console: Console) -> None:
    """Prints the answer."""
    print_parts(_parts(estimate, bar_mark(console)), console)


def _headline(estimate: WorkloadEstimate) -> Text:
    verdict = estimate.verdict
    sizes = ", ".join(
        f"{format_bytes(place.bytes)} of {place.name}"
        + (f" ({format_bytes(place.capacity_bytes)})" if place.capacity_bytes else "")
        for place in estimate.places
    )
    if verdict is None:
        return Text(f"needs {sizes}", style="bold")
    where = f" on {label(estimate.gpu)}" if estimate.gpu else ""
    return Text.assemble((verdict.value, VERDICT_STYLES[verdict]), f"{where}: needs {sizes}")


def _parts(estimate: WorkloadEstimate, bar: str) -> Iterator[RenderableType]:
    yield _headline(estimate)
    yield Text(f"  {estimate.subject}", style="dim")
    for place in estimate.places:
        yield Text(f"\n{place.name}", style="bold")
        scale = max(term.bytes for term in place.terms)
        yield terms_table(place.terms, _look, scale, bar)
    yield Text("\nFigures", style="bold")
    grid = make_grid("left", "right")
    for name, value, unit in estimate.figures:
        grid.add_row(f"  {name}", format_bytes(value) if unit == "bytes" else f"{value:,} {unit}")
    yield grid
    yield Text("\nAssumed", style="bold")
    for line in estimate.assumptions:
        yield Text(f"  {line}", style="dim")


def _look(term: Term) -> Look:
    return _LOOKS.get(term.name, Look(term.name, "#999999"))
