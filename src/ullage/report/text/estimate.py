"""The text report of `ullage estimate` for training.

print_estimate(answer, Console())     prints it
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Final

from rich.console import Console, JustifyMethod, RenderableType
from rich.text import Text

from ullage.estimate.term import OwnedTerm
from ullage.estimate.training.answer import Answer, GpuRow, Knob, Largest
from ullage.estimate.training.estimate import TrainingEstimate
from ullage.estimate.training.infinity import HostMemory
from ullage.estimate.training.layout import Layout
from ullage.estimate.training.recipe import Recipe
from ullage.gpus.catalog import label
from ullage.report.document.estimate import name_verdict
from ullage.report.palette import CACHE_LOOK, CATEGORY_LOOKS, CONTEXT_LOOK, FREE_LOOK, Look
from ullage.report.terminal import bar_mark, make_grid, print_parts, render, terms_table
from ullage.trace.category import Category
from ullage.units import format_bytes

_LOOK_OF_TERM: Final = {
    "context": CONTEXT_LOOK,
    "cached blocks": CACHE_LOOK,
    "free": FREE_LOOK,
}
_RIGHT: Final[JustifyMethod] = "right"
_MOST_GPUS: Final = 24
_MOST_ALIKE: Final = 8


def estimate_line(answer: Answer) -> str:
    """The result, in one line."""
    return _headline(answer.estimate).plain


def render_estimate(answer: Answer, width: int = 80) -> str:
    """The answer as a text without colour, `width` columns wide."""
    return render(lambda console: print_estimate(answer, console), width)


def print_estimate(answer: Answer, console: Console) -> None:
    """Prints the answer."""
    print_parts(_parts(answer, bar_mark(console)), console)


def _headline(estimate: TrainingEstimate) -> Text:
    between = f"{format_bytes(estimate.low_bytes)} to {format_bytes(estimate.high_bytes)}"
    verdict = name_verdict(estimate)
    if verdict is None and estimate.is_floor:
        at_least = format_bytes(estimate.low_bytes)
        return Text.assemble(
            (f"needs at least {at_least}", "bold"),
            "; activations come on top, and take a config.json to be known",
        )
    if estimate.capacity_bytes is None or verdict is None:
        return Text.assemble((f"needs {between}", "bold"), " of a GPU")
    gpu = label(estimate.gpu or "")
    if verdict == "fits":
        left = format_bytes(estimate.capacity_bytes - estimate.high_bytes)
        return Text.assemble(("fits", "bold green"), f" on {gpu}, {left} left; needs {between}")
    if verdict == "may_fit":
        return Text.assemble(
            ("may fit", "bold yellow"),
            f" on {gpu}: needs {between} of {format_bytes(estimate.capacity_bytes)}",
        )
    short = format_bytes(estimate.low_bytes - estimate.capacity_bytes)
    return Text.assemble(("does not fit", "bold red"), f" on {gpu}: {short} short; needs {between}")


def _parts(answer: Answer, bar: str) -> Iterator[RenderableType]:
    estimate = answer.estimate
    yield _headline(estimate)
    yield Text(f"  {_model_line(answer)}", style="dim")
    yield Text(f"  {recipe_line(estimate)}", style="dim")
    where = (
        f" ({estimate.peak.phase}{f', {estimate.peak.section}' if estimate.peak.section else ''})"
    )
    yield Text(f"\nMemory at the peak{where}", style="bold")
    yield _terms_table(estimate, bar)
    yield Text("\nPeak of each phase (allocated)", style="bold")
    yield _phases_table(estimate)
    if estimate.host.memory.high:
        yield Text(f"\n{host_line(estimate.host)}")
    if answer.time is not None:
        from ullage.report.text.time.section import played_time

        num_gpus = estimate.recipe.layout.num_gpus
        yield from played_time(answer.time, answer.expense, bar, num_gpus)
    if answer.gpus:
        yield Text("\nWhich GPU", style="bold")
        yield _gpus_table(answer.gpus, estimate.gpu)
    if answer.largest is not None:
        yield Text(f"\n{_largest_line(answer.largest)}")
    if answer.knobs:
        yield Text("\nWhat would change it", style="bold")
        yield _knobs_table(answer.knobs)
    yield Text("\nAssumed", style="bold")
    for line in estimate.assumptions:
        yield Text(f"  {line}")


def host_line(host: HostMemory) -> str:
    """The host memory that the training needs."""
    low, likely, high = host.memory
    line = f"Host memory of each rank: {format_bytes(likely)}"
    line += f" ({format_bytes(low)} to {format_bytes(high)})" if low < high else ""
    return line + (f"; on NVMe {format_bytes(host.disk_bytes)}" if host.disk_bytes else "")


def _model_line(answer: Answer) -> str:
    estimate = answer.estimate
    source = f", from {answer.source}" if answer.source else ""
    is_all = estimate.num_trainable == estimate.num_parameters
    trained = "" if is_all else f", {estimate.num_trainable:,} of them trained"
    is_divided = estimate.num_rank_parameters != estimate.num_parameters
    share = f", {estimate.num_rank_parameters:,} of them on this GPU" if is_divided else ""
    return f"{estimate.model}: {estimate.num_parameters:,} parameters{trained}{share}{source}"


def recipe_line(estimate: TrainingEstimate) -> str:
    """The recipe of the training, in one line."""
    recipe = estimate.recipe
    words = [f"batch {recipe.batch}"]
    words += [f"length {recipe.length}"] if recipe.length is not None else []
    words += [f"image {recipe.image}"] if recipe.image is not None else []
    words += [recipe.precision, recipe.optimizer, f"attention {recipe.attention}"]
    words += [f"checkpointing {recipe.checkpointing}"]
    words += [f"accumulation {recipe.accumulation}"] if recipe.accumulation > 1 else []
    words += list(_special_words(recipe))
    words += _layout_words(recipe.layout)
    return ", ".join(words)


def _special_words(recipe: Recipe) -> Iterator[str]:
    """What is not as in the plainest loop."""
    lora = recipe.lora
    if lora is not None:
        kind = "QLoRA" if lora.is_quantized else "LoRA"
        yield f"{kind} {lora.rank} of {' and '.join(lora.targets)}"
    if recipe.gradients != "same":
        yield f"gradients {recipe.gradients}"
    if recipe.loss is not None:
        yield f"loss {recipe.loss}"
    if recipe.packed:
        yield "packed"
    if recipe.zeroes_late:
        yield "zero_grad() late"
    if recipe.compiled:
        yield "compiled"
    if recipe.library != "transformers":
        yield f"code of {recipe.library}"
    if recipe.torch is not None:
        yield f"torch {recipe.torch}"


def _layout_words(layout: Layout) -> list[str]:
    """How the job is distributed, and the rank that the estimate is for."""
    if layout.num_gpus == 1:
        return []
    words = [f"{layout.num_gpus} GPUs"]
    words += [f"data {layout.data}"] if layout.data > 1 else []
    words += [f"context {layout.context}"] if layout.context > 1 else []
    words += [layout.sharding] if layout.num_replicas > 1 else []
    words += [f"expert {layout.expert}"] if layout.expert > 1 else []
    words += [f"tensor {layout.tensor}"] if layout.tensor > 1 else []
    words += ["sequence parallel"] if layout.sequence else []
    if layout.pipeline > 1:
        words += [
            f"pipeline {layout.pipeline} ({layout.schedule}, {layout.micro_batches} micro-batches)",
            f"stage {layout.stage}, which needs most",
        ]
    words += ["shards in host memory"] if layout.offload and not layout.nvme else []
    words += ["shards on NVMe"] if layout.nvme else []
    return words


def _terms_table(estimate: TrainingEstimate, bar: str) -> RenderableType:
    scale = max([term.bytes for term in estimate.terms] + [max(estimate.headroom_bytes or 0, 0)])
    terms = [term for term in estimate.terms if term.high_bytes]
    free = (estimate.capacity_bytes or 0) - estimate.bytes
    if free > 0:
        terms.append(OwnedTerm("free", free, free, free, "", ""))
    table = terms_table(terms, look_of_term, scale, bar)
    if estimate.capacity_bytes is not None:
        table.add_row("  total", format_bytes(estimate.capacity_bytes), "", "")
    return table


def look_of_term(term: OwnedTerm) -> Look:
    """The label and colour of a term."""
    if term.category is Category.UNATTRIBUTED:
        return _LOOK_OF_TERM.get(term.name, CONTEXT_LOOK)
    return CATEGORY_LOOKS[term.category]


def _phases_table(estimate: TrainingEstimate) -> RenderableType:
    table = make_grid(*(_RIGHT for _ in estimate.peaks))
    table.add_row(*(f"  {name}" for name in estimate.peaks), style="dim")
    table.add_row(*(f"  {format_bytes(m.allocated_bytes)}" for m in estimate.peaks.values()))
    return table


def _gpus_table(rows: tuple[GpuRow, ...], asked: str | None) -> RenderableType:
    """asked: the GPU that the user named, which is among those shown."""
    is_timed = any(row.step_s is not None for row in rows)
    heads = ["  GPU", "how many", "memory", "needs", "left", "of it", *["step"] * is_timed]
    table = make_grid("left", *(_RIGHT for _ in heads[1:]))
    table.add_row(*heads, style="dim")
    shown = _some(rows, asked)
    for row in shown:
        left = format_bytes(row.headroom_bytes) if row.count else "does not fit"
        share = f"{100 * row.high_bytes / row.capacity_bytes:.0f} %"
        is_asked = row.gpu == asked
        table.add_row(
            Text(f"{'>' if is_asked else ' '} {row.gpu}", style="bold" if is_asked else ""),
            str(row.count or "over 64"),
            format_bytes(row.capacity_bytes),
            format_bytes(row.high_bytes),
            left,
            share,
            *[_step_text(row)] * is_timed,
        )
    if len(rows) > _MOST_GPUS:
        table.add_row(f"  ({len(rows) - len(shown)} more)", *[""] * (len(heads) - 1))
    return table


def _step_text(row: GpuRow) -> str:
    from ullage.report.text.time.numbers import format_seconds

    return "" if row.step_s is None else format_seconds(row.step_s.s)


def _some(rows: tuple[GpuRow, ...], asked: str | None) -> tuple[GpuRow, ...]:
    """Selects as many rows as fit on a screen, some for each number of GPUs, and the one that was
    asked about.
    """
    if len(rows) <= _MOST_GPUS:
        return rows
    gpu_rows: list[GpuRow] = []
    for _, group in groupby(rows, key=lambda row: row.count):
        gpu_rows += list(group)[:_MOST_ALIKE]
    shown = {row.gpu for row in gpu_rows[:_MOST_GPUS]} | {asked}
    return tuple(row for row in rows if row.gpu in shown)


def _largest_line(largest: Largest) -> str:
    gpu = label(largest.gpu)
    if largest.value is None:
        return f"No {largest.knob} fits on {gpu}: even 1 needs {format_bytes(largest.high_bytes)}"
    return (
        f"Largest {largest.knob} that fits on {gpu}: {largest.value:,}, "
        f"which needs {format_bytes(largest.high_bytes)}"
    )


def _knobs_table(knobs: tuple[Knob, ...]) -> RenderableType:
    table = make_grid("left", "right", "right", "left")
    table.add_row("", "saves", "more compute", "", style="dim")
    for knob in knobs:
        table.add_row(
            f"  {knob.name}",
            format_bytes(knob.saved_bytes),
            f"{100 * knob.more_compute:.0f} %",
            Text(knob.remark, style="dim"),
        )
    return table
