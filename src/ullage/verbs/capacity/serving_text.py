"""The view of `ullage capacity`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ullage.answers import block_kinds as b
from ullage.facts.gpus.catalog import label
from ullage.ground.units import format_bytes
from ullage.players.eager.serving.gpu_ranking import ServingRow
from ullage.players.eager.serving.knobs import ServingKnob
from ullage.players.eager.serving.serving_plan import ServingEstimate
from ullage.players.eager.term import Verdict
from ullage.players.eager.time.serving import ServingTime
from ullage.verbs.text.terms import terms_table
from ullage.verbs.text.time.numbers import format_dollars, format_interval, format_rate
from ullage.verbs.views.palette import part_look

_MOST_GPUS: Final = 16
VERDICT_TONES: Final = {
    Verdict.FITS: b.Tone.GOOD,
    Verdict.MAY_FIT: b.Tone.DOUBTFUL,
    Verdict.DOES_NOT_FIT: b.Tone.BAD,
}


def serving_line(serving_estimate: ServingEstimate) -> str:
    """The result, in one line."""
    return _headline(serving_estimate).plain


def _headline(serving_estimate: ServingEstimate) -> b.Headline:
    if serving_estimate.verdict is None or serving_estimate.plan.gpu is None:
        each = format_bytes(serving_estimate.request_bytes)
        return b.Headline.of(
            f"each request of {serving_estimate.plan.context:,} tokens keeps {each}", b.Tone.STRONG
        )
    where = f" on {label(serving_estimate.plan.gpu.slug)}"
    word = b.Word(serving_estimate.verdict.label, VERDICT_TONES[serving_estimate.verdict])
    return b.Headline((word, b.Word(f"{where}: {serving_estimate.reason}")))


def serving_blocks(
    serving_estimate: ServingEstimate, source: str, gpus: Sequence[ServingRow] = (),
    knobs: Sequence[ServingKnob] = (), time: ServingTime | None = None,
) -> Iterator[b.Block]:  # fmt: skip
    """The memory of a GPU, the room for requests, and what else was asked for.

    source: where the model's configuration is from.
    """
    plan = serving_estimate.plan
    origin = f", from {source}" if source else ""
    yield _headline(serving_estimate)
    yield b.Note(
        f"{serving_estimate.model}: {serving_estimate.num_parameters:,} parameters{origin}",
        b.Tone.FAINT,
        indent=2,
    )
    ranks = f", tensor parallel {plan.tensor_parallel}" if plan.tensor_parallel > 1 else ""
    yield b.Note(
        f"{plan.engine}, weights {plan.weights}, KV {plan.precision}{ranks}", b.Tone.FAINT, indent=2
    )
    yield b.Title("Memory of a GPU" if serving_estimate.capacity_bytes else "Weights")
    scale = max(term.bytes for term in serving_estimate.terms)
    yield terms_table(serving_estimate.terms, lambda part: part_look(part.name), scale)
    if serving_estimate.kv_groups:
        yield b.Title("What the layers keep")
        yield _groups_table(serving_estimate)
    if serving_estimate.users and serving_estimate.block_bytes:
        yield b.Title("Room for requests")
        yield _room_table(serving_estimate)
    yield from (b.Note(remark, b.Tone.FAINT, is_apart=True) for remark in serving_estimate.remarks)
    if knobs:
        yield b.Title("What leaves more room")
        yield _knobs_table(knobs)
    if gpus:
        yield b.Title("Which GPU")
        yield _gpus_table(gpus)
    if time is not None:
        from ullage.verbs.text.time.section import rest_on

        yield b.Title("Time")
        yield from (b.Note(line, indent=2) for line in serving_time_lines(time))
        yield from rest_on(time.basis)
    sources: b.Rows = [
        [term.name, b.Word(term.source, b.Tone.FAINT)] for term in serving_estimate.terms
    ]
    yield b.Detail((b.Table((b.LEFT, b.LEFT), sources, ("part", "where it comes from")),))


def _groups_table(serving_estimate: ServingEstimate) -> b.Table:
    rows: b.Rows = [
        [
            group.name,
            str(group.num_layers),
            format_bytes(group.token_bytes),
            format_bytes(group.request_bytes),
        ]
        for group in serving_estimate.kv_groups
    ]
    return b.Table(
        (b.LEFT, b.RIGHT, b.RIGHT, b.RIGHT),
        rows,
        ("", "layers", "a token", f"{serving_estimate.plan.context:,} tokens"),
    )


def room_rows(serving_estimate: ServingEstimate) -> list[tuple[str, Sequence[float], str]]:
    """The capacities: a name, three values (low, likely, high), and the format of the values."""
    return [
        (f"blocks of {serving_estimate.block_size} tokens", serving_estimate.num_blocks, ",d"),
        ("tokens, as the engine counts", serving_estimate.tokens, ",d"),
        ("requests at once", serving_estimate.concurrency, ",.2f"),
        ("longest context of one user", serving_estimate.longest, ",d"),
    ]


def _knobs_table(knobs: Sequence[ServingKnob]) -> b.Table:
    rows: b.Rows = [
        [knob.change, format_bytes(knob.gain_bytes), f"{knob.users:,}"] for knob in knobs
    ]
    return b.Table(
        (b.LEFT, b.RIGHT, b.RIGHT), rows, ("change", "worth of cache", "users, at least")
    )


def _gpus_table(ranked: Sequence[ServingRow]) -> b.Table:
    rows: b.Rows = []
    fitting = [row for row in ranked if row.count]
    for row in fitting[:_MOST_GPUS]:
        size = format_bytes(row.capacity_bytes)
        rows.append([row.gpu, str(row.count), size, f"{row.users:,}"])
    rest = len(fitting) - _MOST_GPUS
    if rest > 0:
        rows.append([f"({rest} more)", "", "", ""])
    rows.append([f"({len(ranked) - len(fitting)} on which they do not fit)", "", "", ""])
    return b.Table(
        (b.LEFT, b.RIGHT, b.RIGHT, b.RIGHT), rows, ("GPU", "how many", "memory", "users, at least")
    )


def _room_table(serving_estimate: ServingEstimate) -> b.Table:
    rows: b.Rows = [
        [name, *(format(value, how) for value in values)]
        for name, values, how in room_rows(serving_estimate)
    ]
    return b.Table((b.LEFT, b.RIGHT, b.RIGHT, b.RIGHT), rows, ("", "at least", "likely", "at most"))


def serving_time_lines(time: ServingTime) -> Iterator[str]:
    """The times, a line each."""
    yield (
        f"first token of a prompt of {time.prompt:,} tokens, alone: {format_interval(time.prefill)}"
    )
    requests = "1 request" if time.users == 1 else f"{time.users:,} requests"
    yield f"each further token of {requests} of {time.context:,}: {format_interval(time.decode)}"
    yield f"new tokens a second: {format_rate(time.tokens_per_s.s)}"
    if time.million_tokens is not None:
        yield f"a million new tokens cost {format_dollars(time.million_tokens)}"
