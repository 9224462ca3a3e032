"""The view of a snapshot, short or whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ullage.answers.blocks import (
    LEFT,
    RIGHT,
    Bar,
    Block,
    Headline,
    Note,
    Overflow,
    Rows,
    Table,
    Title,
    Tone,
    Word,
)
from ullage.explain.rules.case import Case, make_case
from ullage.explain.rules.rule import Finding, Kind, Rule
from ullage.explain.snapshot import DeviceSnapshot
from ullage.explain.trial import MakesItFit, Trial
from ullage.report.palette import CATEGORY_LOOKS
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

FINDING_HANG = 9
"""Blanks before the text of a finding: its code stands there."""
_MAX_FINDINGS = 8
_MAX_NAMED = 3
# Lines for the file, and for each finding, in the short report.
_BRIEF = 2


def explain_line(view: ExplainView) -> str:
    """The verdict alone, as one line without colour."""
    return _verdict(view).plain


def rule_blocks(rule: Rule) -> Iterator[Block]:
    """The output of `ullage explain --rule CODE`."""
    yield Headline.of(f"{rule.code} {rule.title} ({rule.kind.value})", Tone.PLAIN)
    for name, text in (
        ("What it means", rule.meaning),
        ("What it looks at", rule.evidence),
        ("What to do", rule.change),
        ("What that costs", rule.cost),
    ):
        yield Title(name, Tone.PLAIN)
        yield Note(text, indent=2, hang=2)


def explain_blocks(view: ExplainView) -> Iterator[Block]:
    """The verdict, the advice, then the owners of the memory and why it was reserved."""
    yield _verdict(view)
    yield Note(view.path, Tone.FAINT, Overflow.CUT, indent=2)
    for line in describe_file(view.report):
        yield Note(line, Tone.FAINT, indent=2, hang=2)
    for text in view.report.contradictions[:_MAX_NAMED]:
        yield _warning(f"the file contradicts itself: {text}")
    if view.report.record_remark:
        yield _warning(view.report.record_remark)
    yield from _findings(view.findings)
    for device in view.report.devices:
        yield from _device_parts(view, device)
    yield from full_pressure(view.records)


def brief_explain_blocks(view: ExplainView) -> Iterator[Block]:
    """The verdict, the lines that hold most, and what to do first, in 20 lines or fewer; a few more
    say what `ullage record` measured of steps and requests.
    """
    yield _verdict(view)
    notes = [Note(line, Tone.FAINT, Overflow.CUT, indent=2) for line in describe_file(view.report)]
    texts = (*view.report.contradictions[:1], view.report.record_remark)
    warnings = [Note(f"warning: {text}", Tone.FAINT, Overflow.CUT) for text in texts if text]
    yield from [*notes[:_BRIEF], *warnings][-_BRIEF:]
    devices = view.report.devices
    if devices:
        device = max(devices, key=lambda device: device.peak_allocated_bytes)
        which = f" on device {device.index}" if len(devices) > 1 else ""
        yield Title(f"Largest at the peak{which}")
        yield largest_sites(make_case(view.report, device), _MAX_NAMED)
    yield Title("Findings")
    if not view.findings:
        yield Note("none of the rules found anything", indent=2)
    num_lines = _BRIEF if len(view.findings) < _MAX_NAMED else 1
    for finding in view.findings[:_MAX_NAMED]:
        # The verdict has said what is fatal.
        yield _finding_head(finding, 1 if finding.is_fatal else _BRIEF)
        yield replace(_change(finding), max_lines=num_lines)
    yield from brief_pressure(view.records)
    more = len(view.findings) - _MAX_NAMED
    rest = f"{more} more findings, " if more > 1 else "1 more finding, " * (more == 1)
    yield Note(f"--full prints {rest}the evidence, what is reserved, and the steps", Tone.FAINT)


def _warning(text: str) -> Note:
    return Note(f"warning: {text}", Tone.WARNING, hang=0, is_apart=True)


def _change(finding: Finding) -> Note:
    return Note(f"do: {finding.change}", indent=FINDING_HANG, hang=FINDING_HANG)


def _verdict(view: ExplainView) -> Headline:
    """The first line."""
    report = view.report
    failed = next((finding for finding in view.findings if finding.is_fatal), None)
    if failed is not None:
        return Headline.of(failed.what, Tone.BAD)
    if not report.devices:
        return Headline.of("nothing: the file tells of no device memory", Tone.STRONG)
    device = max(report.devices, key=lambda device: device.peak_allocated_bytes)
    share = _largest_share(device)
    peak = format_bytes(device.peak_allocated_bytes)
    return Headline((Word(f"peak {peak}", Tone.STRONG), Word(share)))


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


def _findings(findings: Sequence[Finding]) -> Iterator[Block]:
    yield Title("Findings")
    if not findings:
        yield Note("none of the rules found anything", indent=2)
    for finding in findings[:_MAX_FINDINGS]:
        yield _finding_head(finding)
        for line in finding.evidence:
            yield Note(line, Tone.FAINT, indent=11, hang=11)
        yield _change(finding)
        if finding.trial is not None:
            yield trial_note(finding.trial)
    if len(findings) > _MAX_FINDINGS:
        yield Note(f"and {len(findings) - _MAX_FINDINGS} more, all of them in --json", indent=2)


def _finding_head(finding: Finding, max_lines: int | None = None) -> Note:
    """The code of a finding, what it is, and its gain; in a short report, how its change does."""
    gain = f"up to {format_bytes(finding.gain_bytes)} to gain" if finding.gain_bytes else ""
    guess = "a guess" if finding.is_guess else ""
    trial = finding.trial if max_lines is not None else None
    fits = _FITS.get(trial.makes_it_fit, "") if trial is not None else ""
    notes = ", ".join(part for part in (gain, guess, fits) if part)
    head = f"{finding.what} ({notes})" if notes else finding.what
    tone = Tone.BAD if finding.rule.kind is Kind.FAULT else Tone.DOUBTFUL
    code = Word(finding.rule.code, tone)
    return Note(head, indent=2, hang=FINDING_HANG, lead=code, max_lines=max_lines)


_FITS = {MakesItFit.YES: "makes it fit", MakesItFit.NO: "not enough alone"}
_TRIAL_TONES = {
    MakesItFit.YES: Tone.LESS,
    MakesItFit.NO: Tone.MORE,
    MakesItFit.NOT_KNOWN: Tone.FAINT,
}


def trial_line(trial: Trial) -> str:
    """Whether a change makes the program fit, and how this was determined."""
    return f"makes it fit: {trial.makes_it_fit.label}: {trial.reason}"


def trial_note(trial: Trial) -> Note:
    """The same below a finding."""
    tone = _TRIAL_TONES[trial.makes_it_fit]
    return Note(trial_line(trial), tone, indent=FINDING_HANG, hang=FINDING_HANG)


def _device_parts(view: ExplainView, device: DeviceSnapshot) -> Iterator[Block]:
    case = make_case(view.report, device)
    which = f" of device {device.index}" if len(view.report.devices) > 1 else ""
    guess = "" if device.owners.is_known else ", owners guessed from stacks"
    yield Title(f"Most allocated{which}{moment_text(case, device.peak_event)}{guess}")
    yield _category_table(device)
    if len(device.modules_at_peak) > 1:
        yield Title("By module, at that moment")
        yield module_table(device.modules_at_peak)
    yield Title("By line of code, at that moment")
    yield site_table(case)
    if view.report.contradictions:
        return
    yield from recorded_parts(case)
    yield Title(f"Reserved{which}{moment_text(case, device.fragmentation.event)}")
    yield ledger_table(case)
    yield from fragmentation_parts(case, view.request_bytes)
    yield from step_parts(case)
    yield from _spike_parts(case)


def _category_table(device: DeviceSnapshot) -> Table:
    rows: Rows = []
    scale = max(device.owners_at_peak.values(), default=1)
    peak = max(device.peak_allocated_bytes, 1)
    for category, look in CATEGORY_LOOKS.items():
        size = device.owners_at_peak.get(category, 0)
        if size:
            rows.append(
                [
                    look.label,
                    format_bytes(size, 2),
                    f"{100 * size / peak:.0f} %",
                    Bar(size, scale, look.color),
                ]
            )
    rows.append(["total", format_bytes(device.peak_allocated_bytes, 2)])
    return Table((LEFT, RIGHT, RIGHT, LEFT), rows)


def _spike_parts(case: Case) -> Iterator[Block]:
    spike = case.device.spike
    if spike is None or not case.is_worth(case.peak_bytes - spike.lower_peak_bytes):
        return
    yield Title("Short-lived at the peak")
    text = (
        f"{format_bytes(spike.size_bytes)} live for a few events only; without such blocks the "
        f"peak is {format_bytes(spike.lower_peak_bytes)}"
    )
    yield Note(text, indent=2, hang=2)
