"""The text of a comparison of segments of a chain."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from benchmarks.plans.chains import ChainReport
from ullage.report.palette import USED_LOOK
from ullage.report.terminal import bar_mark, draw_bar, make_grid, print_parts, render
from ullage.units import format_bytes

_BAR_WIDTH: Final = 10
_SHOWN_LENGTHS: Final = 8


def render_segments(report: ChainReport, width: int = 80) -> str:
    """The report as a text without colour, `width` columns wide."""
    return render(lambda console: print_parts(_parts(report, bar_mark(console)), console), width)


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


def _parts(report: ChainReport, bar: str) -> Iterator[RenderableType]:
    yield Text(_segments_line(report), style="bold red" if report.best is None else "bold green")
    yield Text(f"  {' '.join(report.program)}", style="dim", overflow="ellipsis", no_wrap=True)
    yield Text(
        f"  torch {report.torch}, {report.num_runs} runs in {report.wall_s:.1f} s", style="dim"
    )
    if not report.cuts:
        return
    runs = ((kind, len(list(same))) for kind, same in itertools.groupby(report.modules))
    kinds = ", ".join(kind if number == 1 else f"{number} {kind}" for kind, number in runs)
    counts = f"{len(report.modules)} modules in {report.num_units} units"
    yield Text(f"\n  {report.path or 'the model'}: {counts}: {kinds}\n")
    yield _table(report, bar)
    yield Text(
        "\nBasis: peaks and operations as the phantom measured them; times by the clock "
        f"for {report.gpu.slug}; optimal for the bytes that each module keeps"
    )


def _table(report: ChainReport, bar: str) -> Table:
    most = max(cut.allocated_bytes for cut in report.cuts)
    table = make_grid("left", "left", "right", "left", "right", "right", "left")
    heads = ("", "segments", "allocated", "", "operations", "step", "modules in each")
    table.add_row(*heads, style="dim")
    for cut in report.cuts:
        is_best = cut is report.best
        name = Text(cut.name, style="bold" if is_best else "")
        if cut.why_not:
            table.add_row("", name, "", "", "", "", cut.why_not)
            continue
        table.add_row(
            ">" if is_best else "",
            name,
            format_bytes(cut.allocated_bytes, 2),
            draw_bar(USED_LOOK, cut.allocated_bytes, most, bar, _BAR_WIDTH),
            f"+{100 * cut.recomputed:.0f} %",
            f"{1e3 * cut.step_s:.1f} ms",
            _in_words(cut.lengths),
        )
    return table


def _in_words(lengths: Sequence[int]) -> str:
    if len(lengths) <= _SHOWN_LENGTHS:
        return ",".join(map(str, lengths))
    runs = [(length, len(list(same))) for length, same in itertools.groupby(lengths)]
    return ",".join(f"{length}x{number}" if number > 1 else f"{length}" for length, number in runs)
