"""The view of a search for the largest size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ullage.answers import block_kinds as b
from ullage.ground.units import format_bytes
from ullage.search.sizes.largest import LargestReport
from ullage.verbs.fit.text import warning_lines
from ullage.verbs.text.time.numbers import format_rate
from ullage.verbs.views.palette import USED_LOOK
from ullage.verbs.views.semantics import name_kind, say_changes

_BAR_WIDTH: Final = 12


def largest_line(report: LargestReport) -> str:
    """The result, in one line."""
    where = f"{format_bytes(report.budget_bytes, 2)} of {report.gpu.slug}"
    best, plain, name = report.best, report.as_it_is, report.variable
    if report.failure:
        return f"failed: {report.failure}"
    if best is None:
        return f"no {name} fits {where}"
    if best.beyond is None:
        return f"{name} {best.size} fits {where}; the peak does not grow with it any more"
    if not best.actions:
        return f"{name} {best.size} fits {where} unchanged"
    first = f"{name} {plain.size} fits {where} unchanged" if plain else f"no {name} fits unchanged"
    fits = "" if plain else f" fits {where}"
    return f"{first}, {best.size}{fits} under {name_kind(best.actions)}: {best.name}"


def largest_blocks(report: LargestReport) -> Iterator[b.Block]:
    """The sizes that were tried, and the largest that fits."""
    yield b.Headline.of(largest_line(report), b.Tone.GOOD if report.best else b.Tone.BAD)
    yield b.Note(" ".join(report.program), b.Tone.FAINT, b.Overflow.CUT, indent=2)
    line = f"torch {report.torch}, {report.num_runs} runs in {report.wall_s:.1f} s, none on a GPU"
    yield b.Note(line, b.Tone.FAINT, indent=2)
    if report.answers:
        yield b.SPACE
        yield _table(report)
    if report.best is not None and report.best.actions:
        yield b.Note(say_changes(report.best.actions), is_apart=True)
    retries = [answer for answer in report.answers if answer.seen.num_retries]
    if retries:
        sizes = ", ".join(str(retry.size) for retry in retries)
        yield b.Note(
            f"With {report.variable} {sizes} the allocator had to release its cache; the time "
            "for that is not counted",
            b.Tone.WARNING,
            is_apart=True,
        )
    yield from warning_lines(report.warnings, report.left_out)
    if report.answers:
        yield b.Note(
            "Basis: each size was seen to fit on the phantom, and the next one not to; times by "
            "the clock (`ullage run --time`)",
            is_apart=True,
        )


def _table(report: LargestReport) -> b.Table:
    name, best, fastest = report.variable, report.best, report.fastest
    has_tokens = any(answer.tokens_per_s for answer in report.answers)
    rows: b.Rows = []
    heads = [f"step/{name}", *["tokens/s"] * has_tokens]
    for answer in report.answers:
        tones = (b.Tone.STRONG, b.Tone.PLAIN) if answer is best else (b.Tone.PLAIN, b.Tone.FAINT)
        is_fastest = answer is fastest and len(report.answers) > 1
        merit = f", the fastest for each {name}" if is_fastest else ""
        if report.as_fast and (is_fastest or answer in report.as_fast):
            merit = f", about the fastest for each {name}"
        why = f"{answer.beyond} does not: {answer.why_not}" if answer.beyond else "no end was found"
        rows.append(
            [
                ">" if answer is best else "",
                str(answer.size),
                format_bytes(answer.seen.used_bytes, 2),
                b.Bar(answer.seen.used_bytes, report.budget_bytes, USED_LOOK.color, _BAR_WIDTH),
                _time(answer.unit_s),
                *[format_rate(answer.tokens_per_s) if answer.tokens_per_s else ""] * has_tokens,
                (b.Word(answer.name, tones[0]), b.Word(f"{merit}; {why}", tones[1])),
            ]
        )
    return b.Table(
        (b.LEFT, b.RIGHT, b.RIGHT, b.LEFT, *[b.RIGHT] * (1 + has_tokens), b.LEFT),
        rows,
        ("", name, "device", "of the budget", *heads, "plan"),
        indent=0,
    )


def _time(seconds: float) -> str:
    if not seconds:
        return ""
    return f"{1e3 * seconds:.2f} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.1f} us"
