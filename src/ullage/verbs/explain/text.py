"""The view of a snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ullage.answers import block_kinds as b
from ullage.explain.rules.case import Case, make_case
from ullage.explain.rules.rule import Finding, Kind, Rule
from ullage.explain.snapshot import DeviceSnapshot
from ullage.explain.trial import MakesItFit, Trial
from ullage.ground.units import format_bytes
from ullage.log.model import Category
from ullage.verbs.explain.text_parts import (
    describe_file,
    fragmentation_parts,
    largest_sites,
    ledger_table,
    moment_text,
    site_table,
    step_parts,
)
from ullage.verbs.explain.text_recorded import recorded_parts
from ullage.verbs.text.modules import module_table
from ullage.verbs.text.pressure import pressure_blocks
from ullage.verbs.views.palette import CATEGORY_LOOKS
from ullage.verbs.views.views import ExplainView

FINDING_HANG = 9
"""Blanks before the text of a finding: its code stands there."""
_MAX_FINDINGS = 8
_MAX_NAMED = 3
# Lines for the file, and for each finding, without details.
_BRIEF = 2


def explain_line(view: ExplainView) -> str:
    """The verdict alone, as one line without colour."""
    return _verdict(view).plain


def rule_blocks(rule: Rule) -> Iterator[b.Block]:
    """The output of `ullage explain CODE`."""
    yield b.Headline.of(f"{rule.code} {rule.title} ({rule.kind.value})", b.Tone.PLAIN)
    for name, text in (
        ("What it means", rule.meaning),
        ("What it looks at", rule.evidence),
        ("What to do", rule.change),
        ("What that costs", rule.cost),
    ):
        yield b.Title(name, b.Tone.PLAIN)
        yield b.Note(text, indent=2, hang=2)


def explain_blocks(view: ExplainView) -> Iterator[b.Block]:
    """The verdict, the advice, then the owners of the memory and why it was reserved; in short the
    lines that hold most, and what to do first: 20 lines, and a few of what `record` measured.
    """
    findings = view.findings
    yield _verdict(view)
    yield b.Detail(_remarks(view), _brief_remarks(view))
    yield b.Detail((), _largest(view))
    yield b.Title("Findings")
    if not findings:
        yield b.Note("none of the rules found anything", indent=2)
    most_lines = _BRIEF if len(findings) < _MAX_NAMED else 1
    for number, finding in enumerate(findings[:_MAX_FINDINGS]):
        # The verdict has said what is fatal.
        head = _finding_head(finding, 1 if finding.is_fatal else _BRIEF)
        brief = (head, replace(_change(finding), max_lines=most_lines))
        yield b.Detail(_finding(finding), brief if number < _MAX_NAMED else ())
    if len(findings) > _MAX_FINDINGS:
        more = f"and {len(findings) - _MAX_FINDINGS} more, all of them in --json"
        yield b.Detail((b.Note(more, indent=2),))
    for device in view.report.devices:
        yield b.Detail(_device_parts(view, device))
    yield from pressure_blocks(view.records)
    num_more = len(findings) - _MAX_NAMED
    rest = f"{num_more} more findings, " if num_more > 1 else "1 more finding, " * (num_more == 1)
    hint = f"--full prints {rest}the evidence, what is reserved, and the steps"
    yield b.Detail((), (b.Note(hint, b.Tone.FAINT),))


def _remarks(view: ExplainView) -> Iterator[b.Block]:
    """The file, and why it may be wrong."""
    yield b.Note(view.path, b.Tone.FAINT, b.Overflow.CUT, indent=2)
    yield from (b.Note(line, b.Tone.FAINT, indent=2, hang=2) for line in describe_file(view.report))
    for text in view.report.contradictions[:_MAX_NAMED]:
        yield _warning(f"the file contradicts itself: {text}")
    if view.report.record_remark:
        yield _warning(view.report.record_remark)


def _brief_remarks(view: ExplainView) -> list[b.Note]:
    notes = [
        b.Note(line, b.Tone.FAINT, b.Overflow.CUT, indent=2) for line in describe_file(view.report)
    ]
    texts = (*view.report.contradictions[:1], view.report.record_remark)
    warnings = [b.Note(f"warning: {text}", b.Tone.FAINT, b.Overflow.CUT) for text in texts if text]
    return [*notes[:_BRIEF], *warnings][-_BRIEF:]


def _largest(view: ExplainView) -> Iterator[b.Block]:
    """The lines of code that hold most."""
    devices = view.report.devices
    if devices:
        device = max(devices, key=lambda device: device.peak_allocated_bytes)
        which = f" on device {device.index}" if len(devices) > 1 else ""
        yield b.Title(f"Largest at the peak{which}")
        yield largest_sites(make_case(view.report, device), _MAX_NAMED)


def _warning(text: str) -> b.Note:
    return b.Note(f"warning: {text}", b.Tone.WARNING, hang=0, is_apart=True)


def _change(finding: Finding) -> b.Note:
    return b.Note(f"do: {finding.change}", indent=FINDING_HANG, hang=FINDING_HANG)


def _verdict(view: ExplainView) -> b.Headline:
    """The first line."""
    report = view.report
    failed = next((finding for finding in view.findings if finding.is_fatal), None)
    if failed is not None:
        return b.Headline.of(failed.what, b.Tone.BAD)
    if not report.devices:
        return b.Headline.of("nothing: the file tells of no device memory", b.Tone.STRONG)
    device = max(report.devices, key=lambda device: device.peak_allocated_bytes)
    # And the largest owner then: ", 61 % activations (guessed), 4.2 GiB more reserved".
    owners, peak_bytes, text = device.owners_at_peak, device.peak_allocated_bytes, ""
    if owners:
        category = max(owners, key=lambda category: owners[category])
        percent = 100 * owners[category] / max(peak_bytes, 1)
        is_guess = not device.owners.is_known and category is not Category.UNATTRIBUTED
        text = f", {percent:.0f} % {CATEGORY_LOOKS[category].label}{' (guessed)' * is_guess}"
    more = device.peak_reserved_bytes - peak_bytes
    text += f", {format_bytes(more)} more reserved" * (more > 0)
    return b.Headline((b.Word(f"peak {format_bytes(peak_bytes)}", b.Tone.STRONG), b.Word(text)))


def _finding(finding: Finding) -> Iterator[b.Block]:
    yield _finding_head(finding)
    yield from (b.Note(line, b.Tone.FAINT, indent=11, hang=11) for line in finding.evidence)
    yield _change(finding)
    if finding.trial is not None:
        yield trial_note(finding.trial)


def _finding_head(finding: Finding, max_lines: int | None = None) -> b.Note:
    """The code of a finding, what it is, and its gain; in a short report, how its change does."""
    gain = f"up to {format_bytes(finding.gain_bytes)} to gain" if finding.gain_bytes else ""
    guess = "a guess" if finding.is_guess else ""
    trial = finding.trial if max_lines is not None else None
    fits = _FITS.get(trial.makes_it_fit, "") if trial is not None else ""
    notes = ", ".join(part for part in (gain, guess, fits) if part)
    head = f"{finding.what} ({notes})" if notes else finding.what
    tone = b.Tone.BAD if finding.rule.kind is Kind.FAULT else b.Tone.DOUBTFUL
    code = b.Word(finding.rule.code, tone)
    return b.Note(head, indent=2, hang=FINDING_HANG, lead=code, max_lines=max_lines)


_FITS = {MakesItFit.YES: "makes it fit", MakesItFit.NO: "not enough alone"}
_TRIAL_TONES = {
    MakesItFit.YES: b.Tone.LESS,
    MakesItFit.NO: b.Tone.MORE,
    MakesItFit.NOT_KNOWN: b.Tone.FAINT,
}


def trial_line(trial: Trial) -> str:
    """A line on whether a change makes the program fit, and how this was determined."""
    return f"makes it fit: {trial.makes_it_fit.label}: {trial.reason}"


def trial_note(trial: Trial) -> b.Note:
    """The same below a finding."""
    tone = _TRIAL_TONES[trial.makes_it_fit]
    return b.Note(trial_line(trial), tone, indent=FINDING_HANG, hang=FINDING_HANG)


def _device_parts(view: ExplainView, device: DeviceSnapshot) -> Iterator[b.Block]:
    case = make_case(view.report, device)
    which = f" of device {device.index}" if len(view.report.devices) > 1 else ""
    guess = "" if device.owners.is_known else ", owners guessed from stacks"
    yield b.Title(f"Most allocated{which}{moment_text(case, device.peak_event)}{guess}")
    yield _category_table(device)
    if len(device.modules_at_peak) > 1:
        yield b.Title("By module, at that moment")
        yield module_table(device.modules_at_peak)
    yield b.Title("By line of code, at that moment")
    yield site_table(case)
    if view.report.contradictions:
        return
    yield from recorded_parts(case)
    yield b.Title(f"Reserved{which}{moment_text(case, device.fragmentation.event)}")
    yield ledger_table(case)
    yield from fragmentation_parts(case, view.request_bytes)
    yield from step_parts(case)
    yield from _spike_parts(case)


def _category_table(device: DeviceSnapshot) -> b.Table:
    owners, peak = device.owners_at_peak, max(device.peak_allocated_bytes, 1)
    scale = max(owners.values(), default=1)
    rows: b.Rows = [
        [look.label, format_bytes(size, 2), f"{100 * size / peak:.0f} %",
         b.Bar(size, scale, look.color)]
        for category, look in CATEGORY_LOOKS.items()
        if (size := owners.get(category, 0))
    ]  # fmt: skip
    rows.append(["total", format_bytes(device.peak_allocated_bytes, 2)])
    return b.Table((b.LEFT, b.RIGHT, b.RIGHT, b.LEFT), rows)


def _spike_parts(case: Case) -> Iterator[b.Block]:
    spike = case.device.spike
    if spike is None or not case.is_worth(case.peak_bytes - spike.lower_peak_bytes):
        return
    yield b.Title("Short-lived at the peak")
    text = (
        f"{format_bytes(spike.size_bytes)} live for a few events only; without such blocks the "
        f"peak is {format_bytes(spike.lower_peak_bytes)}"
    )
    yield b.Note(text, indent=2, hang=2)
