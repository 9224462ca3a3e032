"""The text report of a run, whole or short: the verdict, then the owners of the memory, then the
basis of the answer.

render_run(report, width=80)          the whole report as a text
print_run(report, Console())          prints it, in colour if the terminal supports that
render_brief(report), print_brief(report, Console())    the short one
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ullage.explain.basis import Assumption
from ullage.explain.compare.ranks import name_ranks
from ullage.explain.device import DeviceReport
from ullage.explain.owners.modules import merge_numbered
from ullage.explain.run import RunReport
from ullage.explain.stops import describe_stop
from ullage.explain.verdict import Verdict
from ullage.printable import printable
from ullage.report.module_names import name_module
from ullage.report.palette import (
    CACHE_LOOK,
    CATEGORY_LOOKS,
    CONTEXT_LOOK,
    FREE_LOOK,
    NON_TORCH_LOOK,
    OTHERS_LOOK,
)
from ullage.report.terminal import bar_mark, draw_bar, make_grid, print_parts, render
from ullage.report.text.modules import module_table
from ullage.report.text.run_parts import (
    assumed_bytes,
    basis_parts,
    host_table,
    list_assumptions,
    peak_table,
    step_table,
)
from ullage.trace.model import StepKind
from ullage.units import format_bytes

if TYPE_CHECKING:
    from ullage.explain.rules.rule import Finding

_NAMED_GPUS = 8
_MAX_OWNERS = 3
# The short report omits parts that are smaller than the device's memory divided by this.
_SMALL_SHARE = 2000
_VERDICT_STYLES = {
    Verdict.FITS: "bold green",
    Verdict.OUT_OF_MEMORY: "bold red",
    Verdict.FAILED: "bold yellow",
}


def render_run(report: RunReport, width: int = 80) -> str:
    """The report as a text without colour, `width` columns wide."""
    return render(lambda console: print_run(report, console), width)


def print_run(report: RunReport, console: Console) -> None:
    """Prints the report; without colour if the console has none or NO_COLOR is set."""
    print_parts(_parts(report, bar=bar_mark(console), width=console.width), console)


def render_brief(report: RunReport, width: int = 80, findings: Sequence[Finding] = ()) -> str:
    """The short report as a text without colour, `width` columns wide."""
    return render(lambda console: print_brief(report, console, findings), width)


def print_brief(report: RunReport, console: Console, findings: Sequence[Finding] = ()) -> None:
    """Prints the verdict, the memory by category, the largest owners, the assumptions, and what the
    largest of the findings is worth.
    """
    print_parts(_brief_parts(report, bar_mark(console), console.width, findings), console)


def verdict_line(report: RunReport) -> str:
    """The verdict alone, as one line without colour."""
    return _verdict(report).plain


def _parts(report: RunReport, bar: str, width: int) -> Iterator[RenderableType]:
    fullest = _fullest(report)
    yield from _head(report)
    yield Text(f"  {_run_line(report)}", style="dim")
    margins = "" if fullest is None else _other_margins(fullest)
    if margins:
        yield Text(f"  {margins}", style="dim")
    yield from _problems(report, width)
    if fullest is not None:
        yield from _device_parts(fullest, report.devices, bar)
    if len(report.devices) > 1 or report.covers:
        yield from _all_devices(report.devices, dict(report.covers))
    if report.time is not None:
        from ullage.report.text.time.section import full_time

        yield from full_time(report, bar, width)
    if any(process.record.measured for process in report.processes):
        from ullage.report.text.pressure import full_pressure

        yield from full_pressure([process.record for process in report.processes], width)
    if report.devices:
        yield Text("\nHost memory", style="bold")
        yield host_table(report.host)
        yield from basis_parts(report)
    if report.is_unlimited and fullest is not None:
        yield Text(f"\n{_fitting_gpus(report)}")


def _brief_parts(
    report: RunReport, bar: str, width: int, findings: Sequence[Finding]
) -> Iterator[RenderableType]:
    fullest = _fullest(report)
    yield from _head(report)
    yield from _problems(report, width)
    if fullest is None:
        return
    yield Text(f"\n{_ledger_title(fullest, report.devices)}", style="bold")
    yield _ledger_table(fullest, bar, is_brief=True)
    owners = textwrap.wrap(_owners_line(fullest), width, subsequent_indent="  ")
    yield from map(Text, owners)
    if report.time is not None:
        from ullage.report.text.time.section import brief_time

        yield from brief_time(report, bar)
    if any(process.record.measured for process in report.processes):
        from ullage.report.text.pressure import brief_pressure

        yield from brief_pressure([process.record for process in report.processes], width)
    yield Text(_assumptions_line(report, width), overflow="ellipsis", no_wrap=True)
    if len(report.devices) > 1 or report.covers:
        yield from _all_devices(report.devices, dict(report.covers))
    if report.is_unlimited:
        yield Text(_fitting_gpus(report))
    if findings:
        yield Text(_worth_line(report, findings), no_wrap=True, overflow="ignore")


def _fullest(report: RunReport) -> DeviceReport | None:
    """The device with the highest use; of those that ran out of memory, where some did."""
    return max(report.devices, key=lambda d: (d.oom is not None, d.peak_used_bytes), default=None)


def _head(report: RunReport) -> Iterator[Text]:
    """The verdict, the program, and its plan or steps if it had any."""
    yield _verdict(report)
    words = printable(" ".join(report.program.argv))
    yield Text(f"  {words}", style="dim", overflow="ellipsis", no_wrap=True)
    if report.program.plan is not None and report.program.plan.plan is not None:
        yield Text(f"  under a plan: {report.program.plan.plan.summary}", style="dim")
    if report.stop is not None:
        yield Text(f"  {describe_stop(report.stop)}", style="dim")


def _problems(report: RunReport, width: int) -> Iterator[Text]:
    """Why the program failed, the advice, and warnings."""
    for message in _failures(report):
        # A long URL is not broken, so that it stays a link.
        lines = textwrap.wrap(message, width, break_long_words=False, break_on_hyphens=False)
        yield Text("\n" + "\n".join(lines), no_wrap=True, overflow="ignore")
    if any(process.findings for process in report.processes):
        from ullage.report.text.remedies import remedy_parts

        yield from remedy_parts(report, width)
    for warning in report.warnings:
        yield Text(f"\nwarning: {warning}", style="yellow")


def _fitting_gpus(report: RunReport) -> str:
    names = ", ".join(report.fits_on[:_NAMED_GPUS]) or "none of the catalogued GPUs"
    more = len(report.fits_on) - _NAMED_GPUS
    return f"The peak fits on: {names}{f' and {more} larger ones' if more > 0 else ''}"


def _worth_line(report: RunReport, findings: Sequence[Finding]) -> str:
    """What the first of the findings is worth, and the command that explains them."""
    gain = findings[0].gain_bytes
    percent = 100 * gain / report.devices[0].totals.peak_allocated_bytes
    which = f"The largest of {len(findings)} findings" if len(findings) > 1 else "A finding"
    worth = f"{which} is worth up to {format_bytes(gain)} ({percent:.0f} % of the peak)"
    return f"{worth}: ullage explain {printable(str(report.processes[0].snapshot))}"


def _owners_line(device: DeviceReport) -> str:
    """The modules that own the most memory; empty if only the model as a whole is known."""
    shares = merge_numbered(device.modules)
    if len(shares) < 2:
        return ""
    owners = (
        f"{name_module(share.path)} {format_bytes(share.size_bytes)}"
        for share in shares[:_MAX_OWNERS]
    )
    return f"Largest owners: {', '.join(owners)}"


def _assumptions_line(report: RunReport, width: int) -> str:
    """The assumptions, as many as fit into one line."""
    if report.is_measured:
        return _measured_line(report)
    names = [*dict.fromkeys(map(_assumption_text, list_assumptions(report)))]
    if not names:
        return "Nothing is assumed; --full prints the rest"
    for count in range(len(names), 0, -1):
        rest = len(names) - count
        more = f"--full lists {rest} more" if rest else "see --full"
        line = f"Assumed: {', '.join(names[:count])}; {more}"
        if len(line) <= width:
            break
    return line


def _measured_line(report: RunReport) -> str:
    """The basis of a record on a real GPU."""
    measured = next(p.record.measured for p in report.processes if p.record.measured is not None)
    driver = f"driver {measured.driver}" if measured.driver else "the driver's version is not known"
    return f"Measured: {measured.mode}, {driver}, torch {report.torch}; --full prints the rest"


def _assumption_text(assumption: Assumption) -> str:
    size = assumed_bytes([assumption]) if assumption.low_bytes is not None else ""
    return f"{assumption.what} ({size})" if size else assumption.what


def _verdict(report: RunReport) -> Text:
    if report.verdict is not Verdict.FITS or not report.devices:
        return _verdict_alone(report)
    line = _measured_verdict(report) if report.is_measured else _verdict_alone(report)
    growing = [device for device in report.devices if device.growth_text]
    if growing:
        first = min(growing, key=lambda device: device.full_after_steps or 0)
        line.append("; ").append(first.growth_text, style="bold yellow")
    return line


def _verdict_alone(report: RunReport) -> Text:
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


def _measured_verdict(report: RunReport) -> Text:
    """The first line of a program that ran through on a GPU."""
    fullest = max(report.devices, key=lambda device: device.totals.peak_reserved_bytes)
    totals = fullest.totals
    peaks = (
        f"peak {format_bytes(totals.peak_allocated_bytes)} allocated, "
        f"{format_bytes(totals.peak_reserved_bytes)} reserved"
    )
    which = f", on {_device_name(fullest, report.devices)}" if len(report.devices) > 1 else ""
    left = format_bytes(fullest.headroom_bytes)
    return Text.assemble(
        (f"measured on {totals.name}", "bold green"), f": {peaks}{which}, {left} left"
    )


def _other_margins(device: DeviceReport) -> str:
    """The other uncertainties of the headroom, with their sizes; empty if there are none."""
    headroom, parts = device.headroom, []
    if headroom.workspace_more_bytes or headroom.workspace_less_bytes:
        more = format_bytes(headroom.workspace_more_bytes)
        less = format_bytes(headroom.workspace_less_bytes)
        parts.append(f"workspaces +{more} -{less}")
    if headroom.completion_less_bytes:
        parts.append(f"other streams -{format_bytes(headroom.completion_less_bytes)}")
    if headroom.tuning_less_bytes:
        parts.append(f"a warm cache of Inductor's -{format_bytes(headroom.tuning_less_bytes)}")
    if headroom.address_less_bytes:
        parts.append(f"order of addresses -{format_bytes(headroom.address_less_bytes)}")
    if headroom.total_margin_bytes and not device.is_unlimited:
        parts.append(f"device's size ±{format_bytes(headroom.total_margin_bytes)}")
    return f"also uncertain: {', '.join(parts)}" if parts else ""


def _run_line(report: RunReport) -> str:
    torch = f"torch {report.torch}"
    name = report.devices[0].totals.name if report.devices else report.gpu.name
    return f"{name}, {torch}, {report.program.wall_s:.1f} s"


def _failures(report: RunReport) -> Iterator[str]:
    """The out-of-memory messages that the program got."""
    for process in report.processes:
        if process.oom is not None and process.oom.message:
            yield process.oom.message


def _device_parts(
    device: DeviceReport, devices: Sequence[DeviceReport], bar: str
) -> Iterator[RenderableType]:
    yield Text(f"\n{_ledger_title(device, devices)}", style="bold")
    yield _ledger_table(device, bar)
    reserved = device.ledger.owners.allocated_bytes + device.ledger.cache_bytes
    more = device.totals.peak_reserved_bytes - reserved
    if more > 0 and not device.oom:
        yield Text(f"  at another moment {format_bytes(more, 2)} more was reserved", style="dim")
    if len(device.modules) > 1:
        yield Text("\nBy module, at that moment", style="bold")
        yield module_table(device.modules)
    yield Text("\nPeaks", style="bold")
    yield peak_table(device)
    if device.steps or device.evaluations:
        yield Text("\nPeak per step (allocated)", style="bold")
        yield step_table(device.steps, device.evaluations)


def _ledger_title(device: DeviceReport, devices: Sequence[DeviceReport]) -> str:
    when = "when it ran out of memory" if device.oom else "when the most was allocated"
    which = "" if len(devices) == 1 else f" of {_device_name(device, devices)}"
    return f"Memory{which} {when}"


def _ledger_table(device: DeviceReport, bar: str, *, is_brief: bool = False) -> Table:
    """A line and a bar for each part of the device; the bar of free memory is cut off. The short
    table omits parts that are too small to change the last digit.
    """
    ledger, has_limit = device.ledger, not device.is_unlimited
    by_category = ledger.owners.by_category
    rows = [(look, by_category[category]) for category, look in CATEGORY_LOOKS.items()]
    rows += [(CACHE_LOOK, ledger.cache_bytes), (CONTEXT_LOOK, ledger.context_bytes)]
    rows += [(NON_TORCH_LOOK, ledger.non_torch_bytes), (OTHERS_LOOK, ledger.others_bytes)]
    scale = max(size for _, size in rows)
    if has_limit:
        rows += [(FREE_LOOK, ledger.free_bytes)]
    table = make_grid("left", "right", "left")
    least = ledger.total_bytes // _SMALL_SHARE if is_brief else 0
    for look, size in rows:
        if size > least:
            table.add_row(
                f"  {look.label}", format_bytes(size, 2), draw_bar(look, size, scale, bar)
            )
    whole = ledger.total_bytes if has_limit else ledger.total_bytes - ledger.free_bytes
    table.add_row("  total" if device.budget_bytes is None else "  budget", format_bytes(whole, 2))
    return table


def _all_devices(
    devices: Sequence[DeviceReport], covers: Mapping[int, Sequence[int]]
) -> Iterator[RenderableType]:
    """A line for each device; ranks with equal figures share a line."""
    rows: dict[tuple[str, ...], list[int]] = {}
    table = make_grid("left", "right", "right", "right")
    table.add_row("  device", "allocated", "reserved", "left", style="dim")
    for device in devices:
        cells = (
            format_bytes(device.totals.peak_allocated_bytes, 2),
            format_bytes(device.totals.peak_reserved_bytes, 2),
            "" if device.is_unlimited else format_bytes(device.headroom_bytes, 2),
        )
        if device.rank is None:
            table.add_row(f"  {_device_name(device, devices)}", *cells)
        else:
            rows.setdefault(cells, []).extend(covers.get(device.rank, (device.rank,)))
    for sizes, ranks in rows.items():
        table.add_row(f"  {name_ranks(sorted(set(ranks)))}", *sizes)
    yield Text("\nAll devices", style="bold")
    yield table


def _device_name(device: DeviceReport, devices: Sequence[DeviceReport]) -> str:
    """A unique name for a device; it includes the process if several processes used devices of the
    same name.
    """
    name = _plain_name(device)
    is_shared = sum(_plain_name(device) == name for device in devices) > 1
    return f"process {device.pid}, {name}" if is_shared else name


def _plain_name(device: DeviceReport) -> str:
    name = f"device {device.totals.index}"
    return name if device.rank is None else f"rank {device.rank}, {name}"
