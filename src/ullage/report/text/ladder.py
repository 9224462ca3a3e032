"""The text report of a search for a ladder.

render_ladder(report, width=80)    a text
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ullage.plan.sizes.rungs import LadderReport
from ullage.report.terminal import make_grid, print_parts, render
from ullage.report.text.fit import left_out_lines
from ullage.units import format_bytes


def render_ladder(report: LadderReport, width: int = 80) -> str:
    """The report as a text without colour, `width` columns wide."""
    return render(lambda console: print_ladder(report, console), width)


def print_ladder(report: LadderReport, console: Console) -> None:
    """Prints the report."""
    print_parts(_parts(report), console)


def ladder_line(report: LadderReport) -> str:
    """The result, in one line."""
    if report.failure:
        return f"failed: {report.failure}"
    where = f"{format_bytes(report.budget_bytes, 2)} of {report.gpu.slug}"
    rungs = f"{len(report.rungs)} rungs" if len(report.rungs) > 1 else "one rung"
    if not report.proved_to:
        return f"no {report.variable} fits {where}"
    line = f"{rungs} for {where}, proved up to {report.variable} {report.proved_to}"
    last = report.sizes[-1]
    return line if report.proved_to == last else f"{line}; no rung fits {last}"


def _parts(report: LadderReport) -> Iterator[RenderableType]:
    is_fine = report.proved_to == report.sizes[-1] and not report.failure
    yield Text(ladder_line(report), style="bold green" if is_fine else "bold red")
    yield Text(f"  {' '.join(report.program)}", style="dim", overflow="ellipsis", no_wrap=True)
    line = f"  torch {report.torch}, {report.num_runs} runs in {report.wall_s:.1f} s, none on a GPU"
    yield Text(line, style="dim")
    if not report.failure:
        yield Text()
        yield _table(report)
    for warning in report.warnings:
        yield Text(f"warning: {warning}", style="yellow")
    yield from left_out_lines(report.left_out)
    sizes = ", ".join(map(str, report.sizes))
    yield Text(
        f"\nBasis: each rung ran on the phantom with {report.variable} {sizes}, from its first "
        "step on; what lies between is not proved. Times by the clock (`ullage run --time`)"
    )


def _table(report: LadderReport) -> Table:
    """The rungs, the fastest first."""
    table = make_grid("right", "right", "right", "right", "left")
    table.add_row("rung", f"{report.variable} up to", "reserved", "step", "plan", style="dim")
    for number, (rung, name) in enumerate(zip(report.rungs, report.names, strict=True)):
        proof = rung.proof
        table.add_row(
            str(number),
            "none" if proof is None else str(proof.size),
            "" if proof is None else format_bytes(proof.reserved_bytes, 2),
            "" if proof is None or not proof.step_s else f"{1e3 * proof.step_s:.2f} ms",
            name,
        )
    return table
