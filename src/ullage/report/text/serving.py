"""The text report of `ullage estimate --serve`.

print_serving(estimate, source, Console())    prints it
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Console, RenderableType
from rich.text import Text

from ullage.estimate.serving.gpu_ranking import ServingRow
from ullage.estimate.serving.knobs import ServingKnob
from ullage.estimate.serving.serving_plan import ServingEstimate
from ullage.estimate.term import Verdict
from ullage.gpus.catalog import label
from ullage.report.palette import CATEGORY_LOOKS, CONTEXT_LOOK, FREE_LOOK, Look
from ullage.report.terminal import bar_mark, make_grid, print_parts, terms_table
from ullage.trace.category import Category
from ullage.units import format_bytes

_MOST_GPUS: Final = 16
_LOOKS: Final = {
    "weights": CATEGORY_LOOKS[Category.PARAMETER],
    "adapters and drafts": CATEGORY_LOOKS[Category.BUFFER],
    "activations": CATEGORY_LOOKS[Category.ACTIVATION],
    "working memory": CATEGORY_LOOKS[Category.TEMPORARY],
    "padding of experts": CATEGORY_LOOKS[Category.BUFFER],
    "zero points": CATEGORY_LOOKS[Category.BUFFER],
    "kernels and buffers": CONTEXT_LOOK,
    "CUDA graphs": CATEGORY_LOOKS[Category.WORKSPACE],
    "context and libraries": CONTEXT_LOOK,
    "left free": FREE_LOOK,
    "KV cache": CATEGORY_LOOKS[Category.KV_CACHE],
}
VERDICT_STYLES: Final = {
    Verdict.FITS: "bold green",
    Verdict.MAY_FIT: "bold yellow",
    Verdict.DOES_NOT_FIT: "bold red",
}


def serving_line(serving_estimate: ServingEstimate) -> str:
    """The result, in one line."""
    return _headline(serving_estimate).plain


def print_serving(
    serving_estimate: ServingEstimate,
    source: str,
    console: Console,
    gpus: Sequence[ServingRow] = (),
    knobs: Sequence[ServingKnob] = (),
) -> None:
    """Prints the answer."""
    print_parts(_parts(serving_estimate, source, bar_mark(console)), console)
    if knobs:
        print_parts([Text("\nWhat leaves more room", style="bold"), _knobs_table(knobs)], console)
    if gpus:
        print_parts([Text("\nWhich GPU", style="bold"), _gpus_table(gpus)], console)


def _headline(serving_estimate: ServingEstimate) -> Text:
    if serving_estimate.verdict is None or serving_estimate.plan.gpu is None:
        each = format_bytes(serving_estimate.request_bytes)
        return Text(
            f"each request of {serving_estimate.plan.context:,} tokens keeps {each}", style="bold"
        )
    style = VERDICT_STYLES[serving_estimate.verdict]
    return Text.assemble(
        (serving_estimate.verdict.value, style),
        f" on {label(serving_estimate.plan.gpu.slug)}: {serving_estimate.reason}",
    )


def _parts(serving_estimate: ServingEstimate, source: str, bar: str) -> Iterator[RenderableType]:
    plan = serving_estimate.plan
    origin = f", from {source}" if source else ""
    yield _headline(serving_estimate)
    yield Text(
        f"  {serving_estimate.model}: {serving_estimate.num_parameters:,} parameters{origin}",
        style="dim",
    )
    ranks = f", tensor parallel {plan.tensor_parallel}" if plan.tensor_parallel > 1 else ""
    yield Text(f"  {plan.engine}, weights {plan.weights}, KV {plan.precision}{ranks}", style="dim")
    yield Text(
        "\nMemory of a GPU" if serving_estimate.capacity_bytes else "\nWeights", style="bold"
    )
    scale = max(term.bytes for term in serving_estimate.terms)
    yield terms_table(serving_estimate.terms, lambda part: look_of_part(part.name), scale, bar)
    if serving_estimate.kv_groups:
        yield Text("\nWhat the layers keep", style="bold")
        yield _groups_table(serving_estimate)
    if serving_estimate.users and serving_estimate.block_bytes:
        yield Text("\nRoom for requests", style="bold")
        yield _room_table(serving_estimate)
    for remark in serving_estimate.remarks:
        yield Text(f"\n{remark}", style="dim")


def look_of_part(name: str) -> Look:
    """The label and colour of a part of a server's memory."""
    return _LOOKS.get(name, Look(name, "#999999"))


def _groups_table(serving_estimate: ServingEstimate) -> RenderableType:
    table = make_grid("left", "right", "right", "right")
    table.add_row("", "layers", "a token", f"{serving_estimate.plan.context:,} tokens", style="dim")
    for group in serving_estimate.kv_groups:
        table.add_row(
            f"  {group.name}",
            str(group.num_layers),
            format_bytes(group.token_bytes),
            format_bytes(group.request_bytes),
        )
    return table


def room_rows(serving_estimate: ServingEstimate) -> list[tuple[str, Sequence[float], str]]:
    """The capacities: a name, three values (low, likely, high), and the format of the values."""
    return [
        (f"blocks of {serving_estimate.block_size} tokens", serving_estimate.num_blocks, ",d"),
        ("tokens, as the engine counts", serving_estimate.tokens, ",d"),
        ("requests at once", serving_estimate.concurrency, ",.2f"),
        ("longest context of one user", serving_estimate.longest, ",d"),
    ]


def _knobs_table(knobs: Sequence[ServingKnob]) -> RenderableType:
    table = make_grid("left", "right", "right")
    table.add_row("  change", "worth of cache", "users, at least", style="dim")
    for knob in knobs:
        table.add_row(f"  {knob.change}", format_bytes(knob.gain_bytes), f"{knob.users:,}")
    return table


def _gpus_table(rows: Sequence[ServingRow]) -> RenderableType:
    table = make_grid("left", "right", "right", "right")
    table.add_row("  GPU", "how many", "memory", "users, at least", style="dim")
    fitting = [row for row in rows if row.count]
    for row in fitting[:_MOST_GPUS]:
        size = format_bytes(row.capacity_bytes)
        table.add_row(f"  {row.gpu}", str(row.count), size, f"{row.users:,}")
    rest = len(fitting) - _MOST_GPUS
    if rest > 0:
        table.add_row(f"  ({rest} more)", "", "", "")
    table.add_row(f"  ({len(rows) - len(fitting)} on which they do not fit)", "", "", "")
    return table


def _room_table(serving_estimate: ServingEstimate) -> RenderableType:
    table = make_grid("left", "right", "right", "right")
    table.add_row("", "at least", "likely", "at most", style="dim")
    for name, values, how in room_rows(serving_estimate):
        table.add_row(f"  {name}", *(format(value, how) for value in values))
    return table
