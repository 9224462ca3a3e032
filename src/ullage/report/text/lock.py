"""The text report of `ullage lock`.

render_locked(report, width=80)       a text
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.text import Text

from ullage.explain.compare.changes import signed
from ullage.gate.compare import Comparison
from ullage.gate.locking import LockReport
from ullage.report.terminal import make_grid, print_parts, render
from ullage.units import format_bytes


def render_locked(report: LockReport, width: int = 80) -> str:
    """The report as a text without colour, `width` columns wide."""
    return render(lambda console: print_locked(report, console), width)


def print_locked(report: LockReport, console: Console) -> None:
    """Prints the report."""
    print_parts(_parts(report), console)


def locked_line(report: LockReport) -> str:
    """The result, in one line."""
    if report.refused:
        many = f"{len(report.refused)} of {len(report.judged)}"
        return f"not locked: {many} scenarios did not go through"
    num_written = len(report.written)
    if not num_written and not report.removed:
        return "the lock is as it was"
    changed = [f"{num_written} written"] if num_written else []
    changed += [f"{len(report.removed)} removed"] if report.removed else []
    return f"locked: {', '.join(changed)}"


def _parts(report: LockReport) -> Iterator[RenderableType]:
    yield Text(locked_line(report), style="bold red" if report.refused else "bold green")
    table = make_grid("left", "right", "right", "right", "left")
    table.columns[0].overflow = "fold"
    table.add_row("  scenario", "allocated", "reserved", "change", "", style="dim")
    for case in report.judged:
        for comparison in case.comparisons if case.state.is_lockable else ():
            peaks = comparison.entry.peaks
            sizes = (peaks.allocated_bytes, peaks.reserved_bytes)
            texts = (format_bytes(size, 2) for size in sizes)
            table.add_row(
                f"  {comparison.name}", *texts, _change(comparison), _what(report, comparison)
            )
    for name in report.removed:
        table.add_row(f"  {name}", "", "", "", "removed")
    yield table
    for case in report.refused:
        yield Text(f"\n{case.name}: {case.reason}", style="bold")
        for line in case.output.splitlines():
            yield Text(f"  {line}", style="dim", no_wrap=True, overflow="fold")
    if report.left:
        yield Text(
            "\n  entries that differ from the lock stay as they were; to update them:\n"
            f"  ullage lock {' '.join(f'--update {name}' for name in report.left)}",
            no_wrap=True, overflow="fold",
        )  # fmt: skip


def _change(comparison: Comparison) -> str:
    if comparison.locked is None:
        return ""
    changed = comparison.entry.peaks.allocated_bytes - comparison.locked.peaks.allocated_bytes
    return signed(changed) if changed else "none"


def _what(report: LockReport, comparison: Comparison) -> str:
    if comparison.name in report.written:
        return "new" if comparison.locked is None else "updated"
    return "left as it was" if comparison.name in report.left else "unchanged"
