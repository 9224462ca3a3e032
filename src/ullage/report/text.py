"""The report of a run for people: the verdict first, then where the memory was, then what the
answer rests on.

render_run(report, width=80)          a text
print_run(report, Console())          the same on a terminal, in colour where it has any
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ullage.explain.basis import Assumption
from ullage.explain.ledger import Ledger
from ullage.explain.run import DeviceReport, RunReport
from ullage.explain.steps import StepPeak
from ullage.explain.verdict import Verdict
from ullage.report.palette import (
    CACHE_LOOK,
    CATEGORY_LOOKS,
    CONTEXT_LOOK,
    FREE_LOOK,
    NON_TORCH_LOOK,
    Look,
)
from ullage.units import format_bytes

_BAR_WIDTH = 32
_MAX_ROWS = 8
_VERDICT_STYLES = {
    Verdict.FITS: "bold green",
    Verdict.OUT_OF_MEMORY: "bold red",
    Verdict.FAILED: "bold yellow",
}
_PHASES = ("forward", "backward", "optimizer")


def render_run(report: RunReport, width: int = 80) -> str:
    """The report as a text without colour, `width` columns wide."""
    file = io.StringIO()
    print_run(report, Console(file=file, width=width, color_system=None, legacy_windows=False))
    return file.getvalue()


def print_run(report: RunReport, console: Console) -> None:
    """Prints the report; a console that has no colour, or NO_COLOR, gets none."""
    for part in _parts(report, bar="#" if console.options.ascii_only else "█"):
        console.print(
            part, highlight=False, soft_wrap=isinstance(part, Text) and part.no_wrap is True
        )


def _parts(report: RunReport, bar: str) -> Iterator[RenderableType]:
    yield _verdict(report)
    yield Text(f"  {' '.join(report.program.argv)}", style="dim", overflow="ellipsis", no_wrap=True)
    yield Text(f"  {_run_line(report)}", style="dim")
    for message in _failures(report):
        yield Text(f"\n{message}")
    for warning in report.warnings:
        yield Text(f"\nwarning: {warning}", style="yellow")
    fullest = max(report.devices, key=lambda device: device.peak_used_bytes, default=None)
    if fullest is not None:
        yield from _device_parts(fullest, bar, is_only=len(report.devices) == 1)
    if len(report.devices) > 1:
        yield from _all_devices(report.devices)
    if report.devices:
        yield from _basis_parts(report)
    if report.is_unlimited and fullest is not None:
        named = ", ".join(report.fits_on) or "none of the catalogued GPUs"
        yield Text(f"\nThe peak fits on: {named}")


def _verdict(report: RunReport) -> Text:
    """The first line."""
    style = _VERDICT_STYLES[report.verdict]
    tightest = min(report.devices, key=lambda device: device.headroom_bytes, default=None)
    if report.verdict is not Verdict.FITS:
        head = {Verdict.OUT_OF_MEMORY: "does not fit", Verdict.FAILED: "failed"}[report.verdict]
        on = f" on {report.gpu.slug}" if report.verdict is Verdict.OUT_OF_MEMORY else ""
        return Text.assemble((f"{head}{on}", style), f": {report.reason}")
    if tightest is None:
        return Text("fits: no device memory was used", style=style)
    if report.is_unlimited:
        used = format_bytes(max(device.peak_used_bytes for device in report.devices))
        return Text.assemble((f"needs {used}", style), f" of a GPU{_margins(tightest)}")
    left = format_bytes(tightest.headroom.middle_bytes)
    return Text.assemble(("fits", style), f" on {report.gpu.slug}, {left} left{_margins(tightest)}")


def _margins(device: DeviceReport) -> str:
    """What is uncertain about a number, and by how much."""
    headroom = device.headroom
    text = (
        f", ±{format_bytes(headroom.context_margin_bytes)} context"
        if headroom.context_margin_bytes
        else ""
    )
    if headroom.workspace_more_bytes or headroom.workspace_less_bytes:
        less, more = (
            format_bytes(headroom.workspace_less_bytes),
            format_bytes(headroom.workspace_more_bytes),
        )
        text += f", +{less} -{more} workspaces"
    if headroom.total_margin_bytes:
        text += f", ±{format_bytes(headroom.total_margin_bytes)} device"
    return text


def _run_line(report: RunReport) -> str:
    torch = f"torch {report.torch}"
    name = report.devices[0].totals.name if report.devices else report.gpu.name
    return f"{name}, {torch}, {report.program.wall_s:.1f} s"


def _failures(report: RunReport) -> Iterator[str]:
    """The messages of what ended the program, as it got them."""
    for process in report.processes:
        if process.oom is not None and process.oom.message:
            yield process.oom.message
            if process.oom.where:
                yield f"  at {process.oom.where}"


def _device_parts(device: DeviceReport, bar: str, *, is_only: bool) -> Iterator[RenderableType]:
    totals, ledger = device.totals, device.ledger
    when = "when it ran out of memory" if device.oom else "when the allocator held the most"
    which = "" if is_only else f" of {_device_name(device)}"
    yield Text(f"\nMemory{which} {when}", style="bold")
    yield _ledger_table(ledger, bar, has_limit=not device.is_unlimited)
    yield Text(
        f"\nPeaks: requested {format_bytes(totals.peak_requested_bytes, 2)}, "
        f"allocated {format_bytes(totals.peak_allocated_bytes, 2)}, "
        f"reserved {format_bytes(totals.peak_reserved_bytes, 2)}, "
        f"device {format_bytes(device.peak_used_bytes, 2)}"
    )
    if device.steps:
        yield Text("\nPeak per step (allocated)", style="bold")
        yield _step_table(device.steps)


def _ledger_table(ledger: Ledger, bar: str, *, has_limit: bool) -> Table:
    """A line and a bar for each part of the device."""
    by_category = ledger.owners.by_category
    rows = [(look, by_category[category]) for category, look in CATEGORY_LOOKS.items()]
    rows += [(CACHE_LOOK, ledger.cache_bytes), (CONTEXT_LOOK, ledger.context_bytes)]
    rows += [(NON_TORCH_LOOK, ledger.non_torch_bytes)]
    if has_limit:
        rows += [(FREE_LOOK, ledger.free_bytes)]
    # Without a limit nothing is free: the bars are parts of what is in use.
    whole = ledger.total_bytes if has_limit else ledger.total_bytes - ledger.free_bytes
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    for look, size in rows:
        if size:
            table.add_row(f"  {look.label}", format_bytes(size, 2), _bar(look, size, whole, bar))
    table.add_row("  total", format_bytes(whole, 2), "")
    return table


def _bar(look: Look, size: int, whole: int, bar: str) -> Text:
    """A bar in proportion; what is there at all shows."""
    length = round(_BAR_WIDTH * max(size, 0) / max(whole, 1))
    text = bar * length if length else ("▏" if bar == "█" else ".") * (size > 0)
    return Text(text, style=look.color)


def _step_table(steps: Sequence[StepPeak]) -> Table:
    """Peaks of steps and their phases; equal steps in a row are one line, and of many lines the
    middle is left out.
    """
    groups = _equal_steps(steps)
    shown = (
        groups
        if len(groups) <= _MAX_ROWS
        else [*groups[: _MAX_ROWS // 2], *groups[-_MAX_ROWS // 2 :]]
    )
    table = Table.grid(padding=(0, 2, 0, 0))
    for justify in ("left", *["right"] * 5):
        table.add_column(justify=justify)  # type: ignore[arg-type]
    table.add_row("  step", "peak", *_PHASES, "reserved", style="dim")
    for number, group in enumerate(shown):
        if len(shown) < len(groups) and number == _MAX_ROWS // 2:
            table.add_row(f"  ({len(groups) - len(shown)} more)")
        first, last = group[0], group[-1]
        name = f"{first.index}" if first is last else f"{first.index}-{last.index}"
        phases = (first.phases.get(phase) for phase in _PHASES)
        table.add_row(
            f"  {name}" if first.is_complete else f"  {name} (unfinished)",
            format_bytes(first.peak.allocated_bytes, 2),
            *("" if phase is None else format_bytes(phase.allocated_bytes, 2) for phase in phases),
            format_bytes(first.peak.reserved_bytes, 2),
        )
    return table


def _equal_steps(steps: Sequence[StepPeak]) -> list[list[StepPeak]]:
    groups: list[list[StepPeak]] = []
    for step in steps:
        alike = groups and groups[-1][0].is_complete == step.is_complete
        if alike and (groups[-1][0].peak, groups[-1][0].phases) == (step.peak, step.phases):
            groups[-1].append(step)
        else:
            groups.append([step])
    return groups


def _all_devices(devices: Sequence[DeviceReport]) -> Iterator[RenderableType]:
    yield Text("\nAll devices", style="bold")
    table = Table.grid(padding=(0, 2, 0, 0))
    for justify in ("left", "right", "right", "right"):
        table.add_column(justify=justify)  # type: ignore[arg-type]
    table.add_row("  device", "allocated", "reserved", "left", style="dim")
    for device in devices:
        table.add_row(
            f"  {_device_name(device)}",
            format_bytes(device.totals.peak_allocated_bytes, 2),
            format_bytes(device.totals.peak_reserved_bytes, 2),
            "" if device.is_unlimited else format_bytes(device.headroom_bytes, 2),
        )
    yield table


def _device_name(device: DeviceReport) -> str:
    name = f"device {device.totals.index}"
    return name if device.rank is None else f"rank {device.rank}, {name}"


def _basis_parts(report: RunReport) -> Iterator[RenderableType]:
    allocator, device = report.allocator_basis, report.device_basis
    yield Text(
        f"\nBasis: allocator {allocator.kind.value}, whole device {device.kind.value}", style="bold"
    )
    listed = (*allocator.assumptions, *device.assumptions)
    if listed:
        yield _assumption_table(sorted(listed, key=lambda made: -made.size_bytes))


def _assumption_table(assumptions: Sequence[Assumption]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(ratio=3, overflow="fold")
    table.add_column(ratio=2, overflow="fold")
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_row("  assumed", "where", "times", "bytes", style="dim")
    for made in assumptions[:_MAX_ROWS]:
        size = format_bytes(made.size_bytes) if made.size_bytes else "-"
        table.add_row(f"  {made.what}", made.where, f"{made.count:,}", size)
    if len(assumptions) > _MAX_ROWS:
        table.add_row(f"  and {len(assumptions) - _MAX_ROWS} more")
    return table
