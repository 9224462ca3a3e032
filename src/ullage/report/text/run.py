"""The report of a run for people: the verdict first, then where the memory was, then what the
answer rests on.

render_run(report, width=80)          a text
print_run(report, Console())          the same on a terminal, in colour where it has any
"""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ullage.explain.basis import Assumption
from ullage.explain.compare.ranks import name_ranks
from ullage.explain.device import DeviceReport
from ullage.explain.host import HostMemory
from ullage.explain.moments.steps import EvaluationPeak, StepPeak
from ullage.explain.run import RunReport
from ullage.explain.stops import describe_stop
from ullage.explain.verdict import Verdict
from ullage.printable import printable
from ullage.report.palette import (
    CACHE_LOOK,
    CATEGORY_LOOKS,
    CONTEXT_LOOK,
    FREE_LOOK,
    NON_TORCH_LOOK,
)
from ullage.report.terminal import bar_mark, draw_bar, make_grid, print_parts, render
from ullage.report.text.modules import module_table
from ullage.report.text.remedies import remedy_parts
from ullage.trace.model import StepKind
from ullage.units import format_bytes

_NAMED_GPUS = 8
_PLACE_WIDTH = 24
_MAX_ROWS = 8
_VERDICT_STYLES = {
    Verdict.FITS: "bold green",
    Verdict.OUT_OF_MEMORY: "bold red",
    Verdict.FAILED: "bold yellow",
}
_PHASES = ("forward", "backward", "optimizer")


def render_run(report: RunReport, width: int = 80) -> str:
    """The report as a text without colour, `width` columns wide."""
    return render(lambda console: print_run(report, console), width)


def print_run(report: RunReport, console: Console) -> None:
    """Prints the report; a console that has no colour, or NO_COLOR, gets none."""
    print_parts(_parts(report, bar=bar_mark(console), width=console.width), console)


def verdict_line(report: RunReport) -> str:
    """The verdict alone, as one line without colour."""
    return _verdict(report).plain


def _parts(report: RunReport, bar: str, width: int) -> Iterator[RenderableType]:
    yield _verdict(report)
    words = printable(" ".join(report.program.argv))
    yield Text(f"  {words}", style="dim", overflow="ellipsis", no_wrap=True)
    yield Text(f"  {_run_line(report)}", style="dim")
    fullest = max(report.devices, key=lambda device: device.peak_used_bytes, default=None)
    if report.program.plan is not None and report.program.plan.plan is not None:
        yield Text(f"  under a plan: {report.program.plan.plan.summary}", style="dim")
    if report.stop is not None:
        yield Text(f"  {describe_stop(report.stop)}", style="dim")
    margins = "" if fullest is None else _other_margins(fullest)
    if margins:
        yield Text(f"  {margins}", style="dim")
    for message in _failures(report):
        # A long address stays whole, so that it can be followed.
        lines = textwrap.wrap(message, width, break_long_words=False, break_on_hyphens=False)
        yield Text("\n" + "\n".join(lines), no_wrap=True, overflow="ignore")
    yield from remedy_parts(report, width)
    for warning in report.warnings:
        yield Text(f"\nwarning: {warning}", style="yellow")
    if fullest is not None:
        yield from _device_parts(fullest, report.devices, bar)
    if len(report.devices) > 1 or report.covers:
        yield from _all_devices(report.devices, dict(report.covers))
    if report.devices:
        yield Text("\nHost memory", style="bold")
        yield _host_table(report.host)
        yield from _basis_parts(report)
    if report.is_unlimited and fullest is not None:
        named = ", ".join(report.fits_on[:_NAMED_GPUS]) or "none of the catalogued GPUs"
        more = len(report.fits_on) - _NAMED_GPUS
        yield Text(f"\nThe peak fits on: {named}{f' and {more} larger ones' if more > 0 else ''}")


def _verdict(report: RunReport) -> Text:
    """The first line."""
    style = _VERDICT_STYLES[report.verdict]
    tightest = min(report.devices, key=lambda device: device.headroom_bytes, default=None)
    if report.verdict is Verdict.OUT_OF_MEMORY:
        return Text.assemble((f"does not fit on {report.gpu.slug}", style), f": {report.reason}")
    if report.verdict is Verdict.FAILED:
        return Text.assemble(("failed", style), f": {report.reason}")
    if tightest is None:
        return Text("fits: no device memory was used", style=style)
    is_cut = report.stop is not None and report.stop.kind is StepKind.INFERENCE
    so_far = " so far" if is_cut else ""
    what = "context and libraries" if tightest.totals.outside else "context"
    context = f"±{format_bytes(tightest.headroom.context_margin_bytes)} {what}"
    if report.is_unlimited:
        used = format_bytes(max(device.peak_used_bytes for device in report.devices))
        return Text.assemble((f"needs up to {used}", style), f" of a GPU{so_far}, {context}")
    left = format_bytes(tightest.headroom.middle_bytes)
    has_several = any(device.totals.index for device in report.devices) or (
        len({device.pid for device in report.devices if device.rank is None}) > 1
    )
    which = f" on {_device_name(tightest, report.devices)}" if has_several else ""
    return Text.assemble(
        (f"fits{so_far}", style), f" on {report.gpu.slug}, {left} left{which}, {context}"
    )


def _other_margins(device: DeviceReport) -> str:
    """What else is uncertain about the room that is left, and by how much; empty if nothing is."""
    headroom, parts = device.headroom, []
    if headroom.workspace_more_bytes or headroom.workspace_less_bytes:
        more = format_bytes(headroom.workspace_more_bytes)
        less = format_bytes(headroom.workspace_less_bytes)
        parts.append(f"workspaces +{more} -{less}")
    if headroom.completion_less_bytes:
        parts.append(f"other streams -{format_bytes(headroom.completion_less_bytes)}")
    if headroom.total_margin_bytes and not device.is_unlimited:
        parts.append(f"device's size ±{format_bytes(headroom.total_margin_bytes)}")
    return f"also uncertain: {', '.join(parts)}" if parts else ""


def _run_line(report: RunReport) -> str:
    torch = f"torch {report.torch}"
    name = report.devices[0].totals.name if report.devices else report.gpu.name
    return f"{name}, {torch}, {report.program.wall_s:.1f} s"


def _failures(report: RunReport) -> Iterator[str]:
    """The messages of what ended the program, as it got them."""
    for process in report.processes:
        if process.oom is not None and process.oom.message:
            yield process.oom.message


def _device_parts(
    device: DeviceReport, devices: Sequence[DeviceReport], bar: str
) -> Iterator[RenderableType]:
    when = "when it ran out of memory" if device.oom else "when the most was allocated"
    which = "" if len(devices) == 1 else f" of {_device_name(device, devices)}"
    yield Text(f"\nMemory{which} {when}", style="bold")
    yield _ledger_table(device, bar)
    reserved = device.ledger.owners.allocated_bytes + device.ledger.cache_bytes
    more = device.totals.peak_reserved_bytes - reserved
    if more > 0 and not device.oom:
        yield Text(f"  at another moment {format_bytes(more, 2)} more was reserved", style="dim")
    if len(device.modules) > 1:
        yield Text("\nBy module, at that moment", style="bold")
        yield module_table(device.modules)
    yield Text("\nPeaks", style="bold")
    yield _peak_table(device)
    if device.steps or device.evaluations:
        yield Text("\nPeak per step (allocated)", style="bold")
        yield _step_table(device.steps, device.evaluations)


def _ledger_table(device: DeviceReport, bar: str) -> Table:
    """A line and a bar for each part of the device; of what is free, no more than fits."""
    ledger, has_limit = device.ledger, not device.is_unlimited
    by_category = ledger.owners.by_category
    rows = [(look, by_category[category]) for category, look in CATEGORY_LOOKS.items()]
    rows += [(CACHE_LOOK, ledger.cache_bytes), (CONTEXT_LOOK, ledger.context_bytes)]
    rows += [(NON_TORCH_LOOK, ledger.non_torch_bytes)]
    scale = max(size for _, size in rows)
    if has_limit:
        rows += [(FREE_LOOK, ledger.free_bytes)]
    table = make_grid("left", "right", "left")
    for look, size in rows:
        if size:
            table.add_row(
                f"  {look.label}", format_bytes(size, 2), draw_bar(look, size, scale, bar)
            )
    whole = ledger.total_bytes if has_limit else ledger.total_bytes - ledger.free_bytes
    table.add_row("  total" if device.budget_bytes is None else "  budget", format_bytes(whole, 2))
    return table


def _peak_table(device: DeviceReport) -> Table:
    totals = device.totals
    table = make_grid("left", "right", "right", "right")
    sizes = (totals.peak_requested_bytes, totals.peak_allocated_bytes, totals.peak_reserved_bytes)
    table.add_row("  requested", "allocated", "reserved", "whole device", style="dim")
    shown = [format_bytes(size, 2) for size in (*sizes, device.peak_used_bytes)]
    table.add_row(f"  {shown[0]}", *shown[1:])
    return table


def _step_table(steps: Sequence[StepPeak], evaluations: Sequence[EvaluationPeak]) -> Table:
    """Peaks of steps and their phases; equal steps in a row are one line, and of many lines the
    middle is left out. All evaluations are one line.
    """
    groups = _equal_steps(steps)
    shown = (
        groups
        if len(groups) <= _MAX_ROWS
        else [*groups[: _MAX_ROWS // 2], *groups[-_MAX_ROWS // 2 :]]
    )
    table = make_grid("left", "right", "right", "right", "right", "right")
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
    if evaluations:
        name = "evaluation" if len(evaluations) == 1 else f"evaluation x {len(evaluations)}"
        peaks = [evaluation.peak for evaluation in evaluations]
        allocated = format_bytes(max(peak.allocated_bytes for peak in peaks), 2)
        reserved = format_bytes(max(peak.reserved_bytes for peak in peaks), 2)
        table.add_row(f"  {name}", allocated, allocated, "", "", reserved)
    return table


def _equal_steps(steps: Sequence[StepPeak]) -> list[list[StepPeak]]:
    """Steps in a row that would be shown alike."""
    return [list(group) for _, group in itertools.groupby(steps, key=_shown_of_step)]


def _shown_of_step(step: StepPeak) -> tuple[object, ...]:
    phases = {name: peak.allocated_bytes for name, peak in step.phases.items()}
    return step.is_complete, step.peak, sorted(phases.items())


def _all_devices(
    devices: Sequence[DeviceReport], covers: Mapping[int, Sequence[int]]
) -> Iterator[RenderableType]:
    """A line for each device; one for all ranks that show the same."""
    rows: dict[tuple[str, ...], list[int]] = {}
    table = make_grid("left", "right", "right", "right")
    table.add_row("  device", "allocated", "reserved", "left", style="dim")
    for device in devices:
        shown = (
            format_bytes(device.totals.peak_allocated_bytes, 2),
            format_bytes(device.totals.peak_reserved_bytes, 2),
            "" if device.is_unlimited else format_bytes(device.headroom_bytes, 2),
        )
        if device.rank is None:
            table.add_row(f"  {_device_name(device, devices)}", *shown)
        else:
            rows.setdefault(shown, []).extend(covers.get(device.rank, (device.rank,)))
    for sizes, ranks in rows.items():
        table.add_row(f"  {name_ranks(sorted(set(ranks)))}", *sizes)
    yield Text("\nAll devices", style="bold")
    yield table


def _device_name(device: DeviceReport, devices: Sequence[DeviceReport]) -> str:
    """A name that no other device of the report has: of several processes that used the same one,
    with the process.
    """
    name = _plain_name(device)
    is_shared = sum(_plain_name(device) == name for device in devices) > 1
    return f"process {device.pid}, {name}" if is_shared else name


def _plain_name(device: DeviceReport) -> str:
    name = f"device {device.totals.index}"
    return name if device.rank is None else f"rank {device.rank}, {name}"


def _host_table(host: HostMemory) -> Table:
    """One line; what would be different with the GPU only where it is."""
    columns = [("peak here", format_bytes(host.peak_bytes, 2))]
    if host.needed_bytes > host.peak_bytes:
        columns.append(("with a GPU at least", format_bytes(host.needed_bytes, 2)))
    if host.pinned_peak_bytes:
        columns.append(("pinned", format_bytes(host.pinned_peak_bytes, 2)))
    table = make_grid("right", "right", "right")
    names, sizes = zip(*columns, strict=True)
    table.add_row(f"  {names[0]}", *names[1:], style="dim")
    table.add_row(f"  {sizes[0]}", *sizes[1:])
    return table


def _basis_parts(report: RunReport) -> Iterator[RenderableType]:
    allocator, device = report.allocator_basis, report.device_basis
    yield Text(
        f"\nBasis: allocator {allocator.kind.value}, whole device {device.kind.value}", style="bold"
    )
    listed = (*allocator.assumptions, *device.assumptions)
    if listed:
        yield _assumption_table(sorted(listed, key=lambda made: -made.size_bytes))


def _assumption_table(assumptions: Sequence[Assumption]) -> Table:
    table = make_grid("left", "left", "left", "right", "right")
    table.columns[0].width = 0  # the margin, which wrapped lines keep too
    table.columns[1].ratio, table.columns[2].max_width = 1, _PLACE_WIDTH
    table.columns[3].no_wrap = table.columns[4].no_wrap = True
    table.add_row("", "assumed", "where", "times", "bytes", style="dim")
    groups = _assumption_groups(assumptions)
    for group in groups[:_MAX_ROWS]:
        where = group[0].where if len(group) == 1 else f"{len(group)} places"
        count = sum(made.count for made in group)
        table.add_row("", group[0].what, where, f"{count:,}", _assumed_bytes(group))
    if len(groups) > _MAX_ROWS:
        table.add_row("", f"and {len(groups) - _MAX_ROWS} more, all of them in --json")
    return table


def _assumption_groups(assumptions: Sequence[Assumption]) -> list[list[Assumption]]:
    """What makes a row each; in a long list the same at many places is one row."""
    if len(assumptions) <= _MAX_ROWS:
        return [[assumption] for assumption in assumptions]
    groups: dict[str, list[Assumption]] = {}
    for assumption in assumptions:
        groups.setdefault(assumption.what, []).append(assumption)
    return list(groups.values())


def _assumed_bytes(group: Sequence[Assumption]) -> str:
    """The ends of an assumed size; of values the bytes that were read."""
    made = group[0]
    if made.low_bytes is not None and made.high_bytes is not None:
        low, high = format_bytes(made.low_bytes), format_bytes(made.high_bytes)
        return f"{low.removesuffix(high[high.index(' ') :])} to {high}"
    size_bytes = sum(made.size_bytes for made in group)
    return format_bytes(size_bytes) if size_bytes else ""
