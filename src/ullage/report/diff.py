"""Two snapshots compared, for people and for programs; the document is schema "ullage.diff/1".

render_diff(report, width=80)         a text
diff_document(report)                 what json.dumps takes
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ullage.explain.diff import Change, DiffReport, Side, signed
from ullage.explain.snapshot import DeviceSnapshot
from ullage.report.document import Document
from ullage.report.palette import CATEGORY_LOOKS
from ullage.report.terminal import make_grid, print_parts, render
from ullage.units import format_bytes

DIFF_SCHEMA = "ullage.diff/1"
_MAX_ROWS = 12
_MAX_CAUSES = 5


def diff_document(report: DiffReport) -> Document:
    """The document of a comparison."""
    return {
        "schema": DIFF_SCHEMA,
        "before": _peaks(report.before),
        "after": _peaks(report.after),
        "changed_allocated_bytes": report.changed_bytes,
        "changed_reserved_bytes": report.changed_reserved_bytes,
        "categories_are": "known" if report.is_known else "guessed",
        "causes": list(report.causes),
        "settings": [
            {"name": name, "before": before, "after": after}
            for name, before, after in report.settings
        ],
        "by_category": [_change(change) for change in report.by_category],
        "by_site": [_change(change) for change in report.by_site],
    }


def render_diff(report: DiffReport, width: int = 80) -> str:
    """The comparison as a text without colour, `width` columns wide."""
    return render(lambda console: print_diff(report, console), width)


def print_diff(report: DiffReport, console: Console) -> None:
    """Prints the comparison."""
    print_parts(_parts(report, console.width), console)


def diff_line(report: DiffReport) -> str:
    """What it comes to, in one line."""
    before, after = _peaks(report.before), _peaks(report.after)
    allocated = [side["peak_allocated_bytes"] for side in (before, after)]
    if not report.changed_bytes and not report.changed_reserved_bytes:
        return f"the peaks are the same: {format_bytes(allocated[0], 2)} allocated"
    shown = " to ".join(format_bytes(size, 2) for size in allocated)
    return (
        f"{signed(report.changed_bytes)} allocated at the peak ({shown}), "
        f"{signed(report.changed_reserved_bytes)} reserved"
    )


def _parts(report: DiffReport, width: int) -> Iterator[RenderableType]:
    more = report.changed_bytes > 0 or report.changed_reserved_bytes > 0
    yield Text(diff_line(report), style="bold red" if more else "bold green")
    for cause in report.causes[:_MAX_CAUSES]:
        yield Text("\n".join(textwrap.wrap(cause, width - 4, initial_indent="  ",
                                           subsequent_indent="    ")))  # fmt: skip
    for name, before, after in report.settings:
        yield Text(f"\nsetting {name}: {before!r} to {after!r}", style="yellow")
    if report.by_category:
        how = "" if report.is_known else " (guessed from stacks)"
        yield Text(f"\nAt the peak, by category{how}", style="bold")
        yield _category_table(report.by_category)
    if report.by_site:
        yield Text("\nAt the peak, by place", style="bold")
        yield _site_table(report.by_site[:_MAX_ROWS])
        if len(report.by_site) > _MAX_ROWS:
            rest = sum(change.changed_bytes for change in report.by_site[_MAX_ROWS:])
            count = len(report.by_site) - _MAX_ROWS
            yield Text(f"  and {count} more, {signed(rest)}, all of them in --json", style="dim")


def _category_table(changes: Sequence[Change]) -> Table:
    table = make_grid("left", "right", "right", "right", "right", "right")
    table.add_row("  category", "before", "after", "change", "blocks", "", style="dim")
    for change in changes:
        label = CATEGORY_LOOKS[change.category].label if change.category else change.name
        table.add_row(f"  {label}", *_sizes(change), style=_style(change))
    return table


def _site_table(changes: Sequence[Change]) -> Table:
    table = make_grid("right", "right", "right", "left")
    table.columns[3].overflow = "fold"
    table.add_row("before", "after", "change", "place", style="dim")
    for change in changes:
        before, after, changed, *_ = _sizes(change)
        place = f"{change.name}\n  {change.looks_like}"
        table.add_row(before, after, changed, Text(place), style=_style(change))
    return table


def _sizes(change: Change) -> list[str]:
    sides = (change.before, change.after)
    return [
        *(format_bytes(side.size_bytes, 2) for side in sides),
        signed(change.changed_bytes),
        *(str(side.num_blocks) for side in sides),
    ]


def _style(change: Change) -> str:
    return "red" if change.changed_bytes > 0 else "green" if change.changed_bytes < 0 else "dim"


def _peaks(device: DeviceSnapshot) -> Document:
    return {
        "device": device.index,
        "peak_allocated_bytes": int(device.levels.allocated_bytes.max()),
        "peak_reserved_bytes": int(device.levels.reserved_bytes.max()),
        "num_events": device.replay.num_events,
    }


def _change(change: Change) -> Document:
    return {
        "name": change.name,
        "category": change.category.value if change.category else None,
        "before": _side(change.before),
        "after": _side(change.after),
        "changed_bytes": change.changed_bytes,
        "looks_like": change.looks_like,
    }


def _side(side: Side) -> Document:
    return {"bytes": side.size_bytes, "blocks": side.num_blocks, "lines": list(side.lines)}
