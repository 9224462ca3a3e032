"""The view of `ullage estimate` for training."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Final

from ullage.answers import block_kinds as b
from ullage.facts.gpus.catalog import label
from ullage.ground.units import format_bytes
from ullage.log.category import Category
from ullage.players.eager.term import OwnedTerm, Verdict
from ullage.players.eager.training.answer import Answer, GpuRow, Knob, Largest
from ullage.players.eager.training.estimate import TrainingEstimate
from ullage.players.eager.training.infinity import HostMemory
from ullage.players.eager.training.layout import Layout
from ullage.players.eager.training.recipe import Recipe
from ullage.verbs.text.terms import terms_table
from ullage.verbs.views.palette import CACHE_LOOK, CATEGORY_LOOKS, CONTEXT_LOOK, FREE_LOOK, Look

_LOOK_OF_TERM: Final = {"context": CONTEXT_LOOK, "cached blocks": CACHE_LOOK, "free": FREE_LOOK}
_MOST_GPUS: Final = 24
_MOST_ALIKE: Final = 8


def estimate_line(answer: Answer) -> str:
    """The result, in one line."""
    return _headline(answer.estimate).plain


def _headline(estimate: TrainingEstimate) -> b.Headline:
    between = f"{format_bytes(estimate.low_bytes)} to {format_bytes(estimate.high_bytes)}"
    verdict = estimate.verdict
    if verdict is None and estimate.is_floor:
        at_least = format_bytes(estimate.low_bytes)
        more = "; activations come on top, and take a config.json to be known"
        return b.Headline.of(f"needs at least {at_least}", b.Tone.STRONG, more)
    if estimate.capacity_bytes is None or verdict is None:
        return b.Headline.of(f"needs {between}", b.Tone.STRONG, " of a GPU")
    gpu = label(estimate.gpu or "")
    if verdict is Verdict.FITS:
        left = format_bytes(estimate.capacity_bytes - estimate.high_bytes)
        return b.Headline.of("fits", b.Tone.GOOD, f" on {gpu}, {left} left; needs {between}")
    if verdict is Verdict.MAY_FIT:
        room = format_bytes(estimate.capacity_bytes)
        return b.Headline.of("may fit", b.Tone.DOUBTFUL, f" on {gpu}: needs {between} of {room}")
    short = format_bytes(estimate.low_bytes - estimate.capacity_bytes)
    return b.Headline.of("does not fit", b.Tone.BAD, f" on {gpu}: {short} short; needs {between}")


def estimate_blocks(answer: Answer) -> Iterator[b.Block]:
    """The memory at the peak, and what else was asked for."""
    estimate = answer.estimate
    yield _headline(estimate)
    yield b.Note(_model_line(answer), b.Tone.FAINT, indent=2)
    yield b.Note(recipe_line(estimate), b.Tone.FAINT, indent=2)
    section = f", {estimate.peak.section}" if estimate.peak.section else ""
    yield b.Title(f"Memory at the peak ({estimate.peak.phase}{section})")
    yield _terms_table(estimate)
    yield b.Title("Peak of each phase (allocated)")
    yield _phases_table(estimate)
    if estimate.host.memory.high:
        yield b.Note(host_line(estimate.host), is_apart=True)
    if answer.time is not None:
        from ullage.verbs.text.time.section import played_time

        num_gpus = estimate.recipe.layout.num_gpus
        yield from played_time(answer.time, answer.expense, num_gpus)
    if answer.gpus:
        yield b.Title("Which GPU")
        yield _gpus_table(answer.gpus, estimate.gpu)
    if answer.largest is not None:
        yield b.Note(_largest_line(answer.largest), is_apart=True)
    if answer.knobs:
        yield b.Title("What would change it")
        yield _knobs_table(answer.knobs)
    yield b.Title("Assumed")
    yield from (b.Note(line, indent=2) for line in estimate.assumptions)


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
    """The options that are not as in the plainest loop."""
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


def _terms_table(estimate: TrainingEstimate) -> b.Table:
    scale = max([term.bytes for term in estimate.terms] + [max(estimate.headroom_bytes or 0, 0)])
    terms = [term for term in estimate.terms if term.high_bytes]
    free = (estimate.capacity_bytes or 0) - estimate.bytes
    if free > 0:
        terms.append(OwnedTerm("free", free, free, free, "", ""))
    return terms_table(terms, look_of_term, scale, estimate.capacity_bytes)


def look_of_term(term: OwnedTerm) -> Look:
    """The label and colour of a term."""
    if term.category is Category.UNATTRIBUTED:
        return _LOOK_OF_TERM.get(term.name, CONTEXT_LOOK)
    return CATEGORY_LOOKS[term.category]


def _phases_table(estimate: TrainingEstimate) -> b.Table:
    sizes = [f"  {format_bytes(moment.allocated_bytes)}" for moment in estimate.peaks.values()]
    return b.Table(
        [b.RIGHT] * len(sizes), [sizes], [f"  {name}" for name in estimate.peaks], indent=0
    )


def _gpus_table(ranked: tuple[GpuRow, ...], asked: str | None) -> b.Table:
    """asked: the GPU that the user named, which is among those shown."""
    is_timed = any(row.step_s is not None for row in ranked)
    heads = ["  GPU", "how many", "memory", "needs", "left", "of it", *["step"] * is_timed]
    rows: b.Rows = []
    shown = _some(ranked, asked)
    for row in shown:
        left = format_bytes(row.headroom_bytes) if row.count else "does not fit"
        share = f"{100 * row.high_bytes / row.capacity_bytes:.0f} %"
        is_asked = row.gpu == asked
        rows.append(
            [
                b.Word(
                    f"{'>' if is_asked else ' '} {row.gpu}",
                    b.Tone.STRONG if is_asked else b.Tone.PLAIN,
                ),
                str(row.count or "over 64"),
                format_bytes(row.capacity_bytes),
                format_bytes(row.high_bytes),
                left,
                share,
                *[_step_text(row)] * is_timed,
            ]
        )
    if len(ranked) > _MOST_GPUS:
        rows.append([f"  ({len(ranked) - len(shown)} more)"])
    return b.Table((b.LEFT, *[b.RIGHT] * (len(heads) - 1)), rows, heads, indent=0)


def _step_text(row: GpuRow) -> str:
    from ullage.verbs.text.time.numbers import format_seconds

    return "" if row.step_s is None else format_seconds(row.step_s.s)


def _some(rows: tuple[GpuRow, ...], asked: str | None) -> tuple[GpuRow, ...]:
    """As many rows as fit on a screen, some for each number of GPUs, and the GPU asked about."""
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


def _knobs_table(knobs: tuple[Knob, ...]) -> b.Table:
    rows: b.Rows = [
        [
            knob.name,
            format_bytes(knob.saved_bytes),
            f"{100 * knob.more_compute:.0f} %",
            b.Word(knob.remark, b.Tone.FAINT),
        ]
        for knob in knobs
    ]
    return b.Table((b.LEFT, b.RIGHT, b.RIGHT, b.LEFT), rows, ("", "saves", "more compute", ""))
