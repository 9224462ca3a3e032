"""The text report of a search for the largest size.

render_largest(report, width=80)    a text
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.console import Console, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from ullage.plan.sizes.largest import LargestReport
from ullage.report.palette import USED_LOOK
from ullage.report.semantics import name_kind, say_changes
from ullage.report.terminal import bar_mark, draw_bar, make_grid, print_parts, render
from ullage.report.text.fit import left_out_lines
from ullage.report.text.time.numbers import format_rate
from ullage.units import format_bytes

_BAR_WIDTH: Final = 12


def render_largest(report: LargestReport, width: int = 80) -> str:
    """The report as a text without colour, `width` columns wide."""
    return render(lambda console: print_largest(report, console), width)


def print_largest(report: LargestReport, console: Console) -> None:
    """Prints the report."""
    print_parts(_parts(report, bar_mark(console)), console)


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


def _parts(report: LargestReport, bar: str) -> Iterator[RenderableType]:
    yield Text(largest_line(report), style="bold green" if report.best else "bold red")
    yield Text(f"  {' '.join(report.program)}", style="dim", overflow="ellipsis", no_wrap=True)
    line = f"  torch {report.torch}, {report.num_runs} runs in {report.wall_s:.1f} s, none on a GPU"
    yield Text(line, style="dim")
    if report.answers:
        yield Text()
        yield _table(report, bar)
    if report.best is not None and report.best.actions:
        yield Text(f"\n{say_changes(report.best.actions)}")
    retries = [answer for answer in report.answers if answer.seen.num_retries]
    if retries:
        sizes = ", ".join(str(retry.size) for retry in retries)
        yield Text(
            f"\nWith {report.variable} {sizes} the allocator had to release its cache; the time "
            "for that is not counted",
            style="yellow",
        )
    for warning in report.warnings:
        yield Text(f"warning: {warning}", style="yellow")
    yield from left_out_lines(report.left_out)
    if report.answers:
        yield Text(
            "\nBasis: each size was seen to fit on the phantom, and the next one not to; times by "
            "the clock (`ullage run --time`)"
        )


def _table(report: LargestReport, bar: str) -> Table:
    name, best, fastest = report.variable, report.best, report.fastest
    has_tokens = any(answer.tokens_per_s for answer in report.answers)
    sides: list[JustifyMethod] = ["right"] * (1 + has_tokens)
    table = make_grid("left", "right", "right", "left", *sides, "left")
    heads = [f"step/{name}", *["tokens/s"] * has_tokens]
    table.add_row("", name, "device", "of the budget", *heads, "plan", style="dim")
    for answer in report.answers:
        text = Text(answer.name, style="bold" if answer is best else "")
        is_fastest = answer is fastest and len(report.answers) > 1
        merit = f", the fastest for each {name}" if is_fastest else ""
        if report.as_fast and (is_fastest or answer in report.as_fast):
            merit = f", about the fastest for each {name}"
        why = f"{answer.beyond} does not: {answer.why_not}" if answer.beyond else "no end was found"
        table.add_row(
            ">" if answer is best else "",
            str(answer.size),
            format_bytes(answer.seen.used_bytes, 2),
            draw_bar(USED_LOOK, answer.seen.used_bytes, report.budget_bytes, bar, _BAR_WIDTH),
            _time(answer.unit_s),
            *[format_rate(answer.tokens_per_s) if answer.tokens_per_s else ""] * has_tokens,
            text.append(f"{merit}; {why}", style="" if answer is best else "dim"),
        )
    return table


def _time(seconds: float) -> str:
    if not seconds:
        return ""
    return f"{1e3 * seconds:.2f} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.1f} us"
