"""The text of a comparison of segments of a chain."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final

from benchmarks.plans.chains import ChainReport
from ullage.answers.block_kinds import (
    LEFT,
    RIGHT,
    SPACE,
    Bar,
    Block,
    Headline,
    Note,
    Overflow,
    Rows,
    Table,
    Tone,
    Word,
)
from ullage.answers.text import render
from ullage.ground.units import format_bytes
from ullage.verbs.views.palette import USED_LOOK

_BAR_WIDTH: Final = 10
_SHOWN_LENGTHS: Final = 8


def render_segments(report: ChainReport, width: int = 80) -> str:
    """The report as a text without colour, `width` columns wide."""
    return render(_blocks(report), width)


def _segments_line(report: ChainReport) -> str:
    """The result, in one line."""
    best, chain = report.best, report.path or "the model"
    if report.failure:
        return f"failed: {report.failure}"
    if best is None:
        return f"no segments of {chain} could be checkpointed: {report.cuts[-1].why_not}"
    as_it_is = report.cuts[0].allocated_bytes
    return (
        f"{chain}: {format_bytes(best.allocated_bytes, 2)} allocated in {len(best.lengths)} "
        f"segments ({best.name}), {format_bytes(as_it_is, 2)} in none"
    )


def _blocks(report: ChainReport) -> Iterator[Block]:
    yield Headline.of(_segments_line(report), Tone.BAD if report.best is None else Tone.GOOD)
    yield Note(" ".join(report.program), Tone.FAINT, Overflow.CUT, indent=2)
    yield Note(
        f"torch {report.torch}, {report.num_runs} runs in {report.wall_s:.1f} s",
        Tone.FAINT,
        indent=2,
    )
    if not report.cuts:
        return
    runs = ((kind, len(list(same))) for kind, same in itertools.groupby(report.modules))
    kinds = ", ".join(kind if number == 1 else f"{number} {kind}" for kind, number in runs)
    counts = f"{len(report.modules)} modules in {report.num_units} units"
    yield Note(f"{report.path or 'the model'}: {counts}: {kinds}", indent=2, is_apart=True)
    yield SPACE
    yield _table(report)
    yield Note(
        "Basis: peaks and operations as the phantom measured them; times by the clock "
        f"for {report.gpu.slug}; optimal for the bytes that each module keeps",
        is_apart=True,
    )


def _table(report: ChainReport) -> Table:
    most = max(cut.allocated_bytes for cut in report.cuts)
    rows: Rows = []
    heads = ("", "segments", "allocated", "", "operations", "step", "modules in each")
    for cut in report.cuts:
        is_best = cut is report.best
        name = Word(cut.name, Tone.STRONG if is_best else Tone.PLAIN)
        if cut.why_not:
            rows.append(["", name, "", "", "", "", cut.why_not])
            continue
        rows.append(
            [
                ">" if is_best else "",
                name,
                format_bytes(cut.allocated_bytes, 2),
                Bar(cut.allocated_bytes, most, USED_LOOK.color, _BAR_WIDTH),
                f"+{100 * cut.recomputed:.0f} %",
                f"{1e3 * cut.step_s:.1f} ms",
                _in_words(cut.lengths),
            ]
        )
    return Table((LEFT, LEFT, RIGHT, LEFT, RIGHT, RIGHT, LEFT), rows, heads, indent=0)


def _in_words(lengths: Sequence[int]) -> str:
    if len(lengths) <= _SHOWN_LENGTHS:
        return ",".join(map(str, lengths))
    runs = [(length, len(list(same))) for length, same in itertools.groupby(lengths)]
    return ",".join(f"{length}x{number}" if number > 1 else f"{length}" for length, number in runs)
