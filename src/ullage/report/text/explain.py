"""The text report of a snapshot, short or whole: the verdict, then the advice, then the owners of
the memory and the reasons why it was reserved.

render_explain(view, width=80)          the whole report as a text
print_explain(view, Console())          prints it, in colour if the terminal supports that
render_brief_explain(view), print_brief_explain(view, Console())    the short one
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ullage.explain.rules.case import Case, make_case
from ullage.explain.rules.rule import Finding, Kind, Rule
from ullage.explain.snapshot import DeviceSnapshot
from ullage.explain.trial import MakesItFit, Trial
from ullage.report.palette import CATEGORY_LOOKS
from ullage.report.terminal import bar_mark, draw_bar, make_grid, print_parts, render
from ullage.report.text.explain_parts import (
    describe_file,
    fragmentation_parts,
    largest_sites,
    ledger_table,
    moment_text,
    site_table,
    step_parts,
)
from ullage.report.text.explain_recorded import recorded_parts
from ullage.report.text.modules import module_table
from ullage.report.text.pressure import brief_pressure, full_pressure
from ullage.report.views import ExplainView
from ullage.trace.model import Category
from ullage.units import format_bytes

_MAX_FINDINGS = 8
_MAX_NAMED = 3
# Lines for the file, and for each finding, in the short report.
_BRIEF = 2


def render_explain(view: ExplainView, width: int = 80) -> str:
    """The report as a text without colour, `width` columns wide."""
    return render(lambda console: print_explain(view, console), width)


def print_explain(view: ExplainView, console: Console) -> None:
    """Prints the report; without colour if the console has none or NO_COLOR is set."""
    print_parts(_parts(view, bar_mark(console), console.width), console)


def render_brief_explain(view: ExplainView, width: int = 80) -> str:
    """The short report as a text without colour, `width` columns wide."""
    return render(lambda console: print_brief_explain(view, console), width)


def print_brief_explain(view: ExplainView, console: Console) -> None:
    """Prints the verdict, the lines that hold most, and what to do first, in 20 lines or fewer; a
    few more say what `ullage record` measured of steps and requests.
    """
    print_parts(_brief_parts(view, console.width), console)


def explain_line(view: ExplainView) -> str:
    """The verdict alone, as one line without colour."""
    return _verdict(view).plain


def render_rule(rule: Rule, width: int = 80) -> str:
    """The output of `ullage explain --rule CODE`."""
    rows = [f"{rule.code} {rule.title} ({rule.kind.value})"]
    for name, text in (
        ("What it means", rule.meaning),
        ("What it looks at", rule.evidence),
        ("What to do", rule.change),
        ("What that costs", rule.cost),
    ):
        rows += ["", name, *_wrap(text, width, "  ")]
    return "\n".join(rows) + "\n"


def _parts(view: ExplainView, bar: str, width: int) -> Iterator[RenderableType]:
    yield _verdict(view)
    yield Text(f"  {view.path}", style="dim", overflow="ellipsis", no_wrap=True)
    for line in describe_file(view.report):
        yield Text("\n".join(_wrap(line, width, "  ")), style="dim")
    for text in view.report.contradictions[:_MAX_NAMED]:
        yield _warning(f"the file contradicts itself: {text}", width)
    if view.report.record_remark:
        yield _warning(view.report.record_remark, width)
    yield from _findings(view.findings, width)
    for device in view.report.devices:
        yield from _device_parts(view, device, bar, width)
    yield from full_pressure(view.records, width)


def _brief_parts(view: ExplainView, width: int) -> Iterator[RenderableType]:
    yield _verdict(view)
    lines = [f"  {line}" for line in describe_file(view.report)]
    texts = (*view.report.contradictions[:1], view.report.record_remark)
    lines = lines[:_BRIEF] + [f"warning: {text}" for text in texts if text]
    for line in lines[-_BRIEF:]:
        yield Text(line, style="dim", overflow="ellipsis", no_wrap=True)
    devices = view.report.devices
    if devices:
        device = max(devices, key=lambda device: device.peak_allocated_bytes)
        which = f" on device {device.index}" if len(devices) > 1 else ""
        yield Text(f"\nLargest at the peak{which}", style="bold")
        yield largest_sites(make_case(view.report, device), width, _MAX_NAMED)
    yield Text("\nFindings", style="bold")
    if not view.findings:
        yield Text("  none of the rules found anything")
    num_lines = _BRIEF if len(view.findings) < _MAX_NAMED else 1
    for finding in view.findings[:_MAX_NAMED]:
        # The verdict has said what is fatal.
        yield _finding_head(finding, width, 1 if finding.is_fatal else _BRIEF)
        lines = _cut(_wrap(f"do: {finding.change}", width, " " * 9), width, num_lines)
        yield Text("\n".join(lines))
    yield from brief_pressure(view.records, width)
    more = len(view.findings) - _MAX_NAMED
    rest = f"{more} more findings, " if more > 1 else "1 more finding, " * (more == 1)
    yield Text(f"--full prints {rest}the evidence, what is reserved, and the steps", style="dim")


def _warning(text: str, width: int) -> Text:
    return Text("\n" + "\n".join(_wrap(f"warning: {text}", width, "")), style="yellow")


def _verdict(view: ExplainView) -> Text:
    """The first line."""
    report = view.report
    failed = next((finding for finding in view.findings if finding.is_fatal), None)
    if failed is not None:
        return Text(failed.what, style="bold red")
    if not report.devices:
        return Text("nothing: the file tells of no device memory", style="bold")
    device = max(report.devices, key=lambda device: device.peak_allocated_bytes)
    share = _largest_share(device)
    peak = format_bytes(device.peak_allocated_bytes)
    return Text.assemble((f"peak {peak}", "bold"), share)


def _largest_share(device: DeviceSnapshot) -> str:
    """The largest owner at the peak: ", 61 % activations (guessed), 4.2 GiB more reserved"."""
    owners, text = device.owners_at_peak, ""
    if owners:
        category = max(owners, key=lambda category: owners[category])
        percent = 100 * owners[category] / max(device.peak_allocated_bytes, 1)
        is_guess = not device.owners.is_known and category is not Category.UNATTRIBUTED
        text = f", {percent:.0f} % {CATEGORY_LOOKS[category].label}{' (guessed)' * is_guess}"
    more = device.peak_reserved_bytes - device.peak_allocated_bytes
    return f"{text}, {format_bytes(more)} more reserved" if more > 0 else text


def _findings(findings: Sequence[Finding], width: int) -> Iterator[RenderableType]:
    yield Text("\nFindings", style="bold")
    if not findings:
        yield Text("  none of the rules found anything")
    for finding in findings[:_MAX_FINDINGS]:
        yield _finding_head(finding, width)
        for line in finding.evidence:
            yield Text("\n".join(_wrap(line, width, " " * 11)), style="dim")
        yield Text("\n".join(_wrap(f"do: {finding.change}", width, " " * 9)))
        if finding.trial is not None:
            yield trial_text(finding.trial, width, " " * 9)
    if len(findings) > _MAX_FINDINGS:
        yield Text(f"  and {len(findings) - _MAX_FINDINGS} more, all of them in --json")


def _cut(lines: list[str], width: int, max_lines: int) -> list[str]:
    """The first lines, with a mark where that is not all."""
    if len(lines) <= max_lines:
        return lines
    return [*lines[: max_lines - 1], f"{lines[max_lines - 1][: width - 4]} ..."]


def _finding_head(finding: Finding, width: int, max_lines: int | None = None) -> Text:
    """The code of a finding, what it is, and its gain; in a short report, how its change does."""
    gain = f"up to {format_bytes(finding.gain_bytes)} to gain" if finding.gain_bytes else ""
    guess = "a guess" if finding.is_guess else ""
    trial = finding.trial if max_lines is not None else None
    fits = _FITS.get(trial.makes_it_fit, "") if trial is not None else ""
    notes = ", ".join(part for part in (gain, guess, fits) if part)
    head = f"{finding.what} ({notes})" if notes else finding.what
    lines = _wrap(head, width, " " * 9)
    if max_lines is not None:
        lines = _cut(lines, width, max_lines)
    is_fault = finding.rule.kind is Kind.FAULT
    text = Text("  ")
    text.append(finding.rule.code, style="bold red" if is_fault else "bold yellow")
    text.append("  " + "\n".join(lines)[9:])
    return text


_FITS = {MakesItFit.YES: "makes it fit", MakesItFit.NO: "not enough alone"}
_TRIAL_STYLES = {MakesItFit.YES: "green", MakesItFit.NO: "red", MakesItFit.NOT_KNOWN: "dim"}


def trial_line(trial: Trial) -> str:
    """Whether a change makes the program fit, and how this was determined."""
    return f"makes it fit: {trial.makes_it_fit.label}: {trial.reason}"


def trial_text(trial: Trial, width: int, margin: str) -> Text:
    """The same as wrapped lines."""
    lines = _wrap(trial_line(trial), width, margin)
    return Text("\n".join(lines), style=_TRIAL_STYLES[trial.makes_it_fit])


def _device_parts(
    view: ExplainView, device: DeviceSnapshot, bar: str, width: int
) -> Iterator[RenderableType]:
    case = make_case(view.report, device)
    which = f" of device {device.index}" if len(view.report.devices) > 1 else ""
    guess = "" if device.owners.is_known else ", owners guessed from stacks"
    yield Text(f"\nMost allocated{which}{moment_text(case, device.peak_event)}{guess}", "bold")
    yield _category_table(device, bar)
    if len(device.modules_at_peak) > 1:
        yield Text("\nBy module, at that moment", style="bold")
        yield module_table(device.modules_at_peak)
    yield Text("\nBy line of code, at that moment", style="bold")
    yield site_table(case, width)
    if view.report.contradictions:
        return
    yield from recorded_parts(case, width)
    yield Text(f"\nReserved{which}{moment_text(case, device.fragmentation.event)}", "bold")
    yield ledger_table(case, bar)
    yield from fragmentation_parts(case, view.request_bytes, width)
    yield from step_parts(case)
    yield from _spike_parts(case, width)


def _category_table(device: DeviceSnapshot, bar: str) -> Table:
    table = make_grid("left", "right", "right", "left")
    scale = max(device.owners_at_peak.values(), default=1)
    peak = max(device.peak_allocated_bytes, 1)
    for category, look in CATEGORY_LOOKS.items():
        size = device.owners_at_peak.get(category, 0)
        if size:
            table.add_row(f"  {look.label}", format_bytes(size, 2), f"{100 * size / peak:.0f} %",
                          draw_bar(look, size, scale, bar))  # fmt: skip
    table.add_row("  total", format_bytes(device.peak_allocated_bytes, 2))
    return table


def _spike_parts(case: Case, width: int) -> Iterator[RenderableType]:
    spike = case.device.spike
    if spike is None or not case.is_worth(case.peak_bytes - spike.lower_peak_bytes):
        return
    yield Text("\nShort-lived at the peak", style="bold")
    text = (
        f"{format_bytes(spike.size_bytes)} live for a few events only; without such blocks the "
        f"peak is {format_bytes(spike.lower_peak_bytes)}"
    )
    yield Text("\n".join(_wrap(text, width, "  ")))


def _wrap(text: str, width: int, margin: str) -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=margin, subsequent_indent=margin,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
