"""The text report of a comparison of two snapshots.

render_diff(report, width=80)         a text
print_diff(report, Console())         prints it
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ullage.explain.compare.agreement import Term
from ullage.explain.compare.causes import MIN_SHARE, CauseKind
from ullage.explain.compare.changes import Change, ModuleChange, signed
from ullage.explain.compare.diff import DiffReport, PhaseChange
from ullage.explain.compare.differences import Difference
from ullage.explain.compare.memory_here import NotKnown
from ullage.explain.owners.sites import UNKNOWN_SITE
from ullage.gpus.measured_memory import MeasuredMemory
from ullage.report.module_names import name_module
from ullage.report.palette import CATEGORY_LOOKS
from ullage.report.terminal import make_grid, print_parts, render
from ullage.units import format_bytes

_MAX_ROWS = 12
_MAX_CAUSES = 5
# The width of the column of changes beside the places, with the gap between the columns.
_CHANGE_WIDTH = 16
# Places that changed by less than this fraction of the larger peak are summed up.
_SHOWN_SHARE = 0.001


def render_diff(report: DiffReport, width: int = 80) -> str:
    """The comparison as a text without colour, `width` columns wide."""
    return render(lambda console: print_diff(report, console), width)


def print_diff(report: DiffReport, console: Console) -> None:
    """Prints the comparison."""
    print_parts(_parts(report, console.width), console)


def diff_line(report: DiffReport) -> str:
    """The result, in one line."""
    allocated = [totals.peak_allocated_bytes for totals in report.totals]
    outside = _outside(report)
    more = f", {signed(outside)} outside PyTorch" if outside else ""
    if not report.changed_bytes and not report.changed_reserved_bytes:
        return f"the peaks are the same: {format_bytes(allocated[0], 2)} allocated{more}"
    sizes = " to ".join(format_bytes(size, 2) for size in allocated)
    return (
        f"{signed(report.changed_bytes)} allocated at the peak ({sizes}), "
        f"{signed(report.changed_reserved_bytes)} reserved{more}"
    )


def _outside(report: DiffReport) -> int:
    """The change outside PyTorch; that of a prediction is among the terms."""
    return 0 if report.terms else report.changed_outside_bytes or 0


def phase_line(report: DiffReport) -> str:
    """The changes of phases: "backward +1.31 GiB, forward unchanged"; empty if none are known."""
    changed = [phase for phase in report.phases if _is_changed(phase)]
    same = [phase.name for phase in report.phases if not _is_changed(phase)]
    parts = [f"{phase.name} {signed(phase.changed_bytes)}" for phase in changed]
    parts += [f"{', '.join(same)} unchanged"] if same and changed else []
    return "; ".join(parts)


def _is_changed(phase: PhaseChange) -> bool:
    return abs(phase.changed_bytes) >= MIN_SHARE * max(phase.before_bytes, phase.after_bytes, 1)


def _parts(report: DiffReport, width: int) -> Iterator[RenderableType]:
    changes = report.changed_bytes, report.changed_reserved_bytes, _outside(report)
    more = any(change > 0 for change in changes)
    yield Text(diff_line(report), style="bold red" if more else "bold green")
    if report.before is None:
        yield Text("  the peaks alone: a document's snapshot is not where it was written")
    if report.until:
        yield Text("\n".join(_wrap(f"compared up to {report.until}", width)))
    line = phase_line(report)
    if line:
        yield Text("\n".join(_wrap(f"peaks: {line}", width)))
    if report.terms:
        yield Text("\nMeasured and predicted", style="bold")
        yield _term_table(report.terms)
    if report.causes:
        yield Text("\nWhy", style="bold")
    for cause in report.causes[:_MAX_CAUSES]:
        size = f"{signed(cause.changed_bytes)}: " if cause.changed_bytes else ""
        yield Text("\n".join(_wrap(size + cause.text, width)))
    yield from _rest(report, width)
    if report.differences:
        yield Text("\nWhat else differs", style="bold")
        yield _difference_table(report.differences)
    if report.phases:
        yield Text("\nPeak of each phase", style="bold")
        yield _phase_table(report.phases)
    yield from _peak_parts(report, width)


def _least(report: DiffReport) -> float:
    """The smallest change that is shown."""
    return _SHOWN_SHARE * max(1, *(totals.peak_allocated_bytes for totals in report.totals))


def _rest(report: DiffReport, width: int) -> Iterator[RenderableType]:
    """What the causes leave of the change; or that they overlap, and do not add up to it."""
    shown = report.causes[:_MAX_CAUSES]
    rest = report.changed_bytes + _outside(report) - sum(cause.changed_bytes for cause in shown)
    if not shown or abs(rest) < _least(report):
        return
    if all(cause.kind in (CauseKind.PLACE, CauseKind.OUTSIDE) for cause in shown):
        text = f"{signed(rest)}: all other places"
    else:
        text = "(the lines overlap and do not add up: a place is also part of a cause)"
    yield Text("\n".join(_wrap(text, width)), style="dim")


def stored_lines(memory: MeasuredMemory | NotKnown, path: Path | None) -> list[str]:
    """What was kept of the GPU and where, or why it was not."""
    if isinstance(memory, NotKnown):
        return [f"Not kept for `ullage gpus`: {memory.reason}."]
    sizes = [f"context {format_bytes(memory.context_bytes)}"]
    sizes += [f"{name} {format_bytes(size)}" for name, size in memory.workspace_bytes.items()]
    return [
        f"Kept for `ullage gpus {memory.gpu}`, as measured: {', '.join(sizes)}",
        f"Wrote {path}",
    ]


def _term_table(terms: Sequence[Term]) -> Table:
    table = make_grid("left", "right", "left", "left")
    for term in terms:
        ends = dict.fromkeys(format_bytes(size) for size in (term.low_bytes, term.high_bytes))
        measured = "" if term.measured_bytes is None else format_bytes(term.measured_bytes)
        verdict = {None: "not measured", True: "inside", False: "outside"}[term.is_inside]
        table.add_row(f"  {term.name}", measured, f"predicted {' to '.join(ends)}", verdict)
    return table


def _peak_parts(report: DiffReport, width: int) -> Iterator[RenderableType]:
    if report.by_category:
        how = "" if report.is_known else " (guessed from stacks)"
        yield Text(f"\nAt the peak, by category{how}", style="bold")
        yield _category_table(report.by_category)
    least = _least(report)
    modules = [module for module in report.by_module if abs(module.changed_bytes) >= least]
    if modules:
        yield Text("\nAt the peak, by module", style="bold")
        yield _module_table(modules[:_MAX_ROWS])
    if not report.by_site:
        return
    yield Text("\nAt the peak, by place", style="bold")
    places = [place for place in report.by_site if abs(place.changed_bytes) >= least][:_MAX_ROWS]
    yield _site_table(places, width)
    others = set(report.by_site) - set(places)
    if others:
        rest = signed(sum(other.changed_bytes for other in others))
        yield Text(f"  and {len(others)} more, {rest}, all of them in --json", style="dim")


def _wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width - 2, initial_indent="  ", subsequent_indent="    ")


def _difference_table(differences: Sequence[Difference]) -> Table:
    table = make_grid("left", "left", "left")
    table.add_row("  ", "before", "after", style="dim")
    for difference in differences:
        sides = (
            "-" if side is None else str(side) for side in (difference.before, difference.after)
        )
        table.add_row(f"  {difference.name}", *(Text(side, overflow="fold") for side in sides))
    return table


def _phase_table(phases: Sequence[PhaseChange]) -> Table:
    table = make_grid("left", "right", "right", "right", "left")
    table.add_row("  phase", "before", "after", "change", "mostly", style="dim")
    for phase in phases:
        sizes = [format_bytes(size, 2) for size in (phase.before_bytes, phase.after_bytes)]
        largest = phase.by_site[0] if phase.by_site and _is_changed(phase) else None
        what = "" if largest is None else _short(largest)
        table.add_row(
            f"  {phase.name}", *sizes, signed(phase.changed_bytes),
            Text(what, overflow="ellipsis", no_wrap=True),
            style=_style(phase.changed_bytes if _is_changed(phase) else 0),
        )  # fmt: skip
    return table


def _short(change: Change) -> str:
    """The place with the largest change, shortened to the width of a column."""
    if change.name == UNKNOWN_SITE:
        return f"{_owner(change)}, no Python stack"
    return change.name.rpartition("/")[2]


def _owner(change: Change) -> str:
    return CATEGORY_LOOKS[change.category].label if change.category else change.name


def _category_table(changes: Sequence[Change]) -> Table:
    table = make_grid("left", "right", "right", "right", "right", "right")
    has_blocks = any(change.before.num_blocks or change.after.num_blocks for change in changes)
    title = "blocks" if has_blocks else ""
    table.add_row("  category", "before", "after", "change", title, "", style="dim")
    for change in changes:
        sides = (change.before, change.after)
        counts = (str(side.num_blocks) if has_blocks else "" for side in sides)
        table.add_row(
            f"  {_owner(change)}", *_sizes(change), *counts, style=_style(change.changed_bytes)
        )
    return table


def _module_table(changes: Sequence[ModuleChange]) -> Table:
    table = make_grid("left", "right", "right", "right")
    table.add_row("  module", "before", "after", "change", style="dim")
    for change in changes:
        sizes = [format_bytes(size, 2) for size in (change.before_bytes, change.after_bytes)]
        name = Text(f"  {name_module(change.path)}", overflow="ellipsis", no_wrap=True)
        table.add_row(
            name, *sizes, signed(change.changed_bytes), style=_style(change.changed_bytes)
        )
    return table


def _site_table(changes: Sequence[Change], width: int) -> Table:
    table = make_grid("right", "left")
    for change in changes:
        name = "no Python stack" if change.name == UNKNOWN_SITE else change.name
        before, after = (format_bytes(side.size_bytes) for side in (change.before, change.after))
        size = f"{_owner(change)}, {before} to {after}; {change.looks_like}"
        lines = textwrap.wrap(size, width - _CHANGE_WIDTH, subsequent_indent="  ")
        style = _style(change.changed_bytes)
        table.add_row(
            Text(f"  {signed(change.changed_bytes)}", style=style), Text("\n".join((name, *lines)))
        )
    return table


def _sizes(change: Change) -> list[str]:
    sizes = [format_bytes(side.size_bytes, 2) for side in (change.before, change.after)]
    return [*sizes, signed(change.changed_bytes)]


def _style(changed_bytes: int) -> str:
    return "red" if changed_bytes > 0 else "green" if changed_bytes < 0 else "dim"
