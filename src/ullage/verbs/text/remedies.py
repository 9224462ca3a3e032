"""The advice for a program that ran out of memory, a part of the report of a run."""

from __future__ import annotations

from collections.abc import Iterator

from ullage.answers import block_kinds as b
from ullage.explain.remedies import sets_allocator
from ullage.explain.rules.rule import Finding
from ullage.explain.run import RunReport
from ullage.explain.trial import MakesItFit
from ullage.verbs.explain.text import FINDING_HANG, trial_note

_SHOWN = 3


def remedy_parts(report: RunReport) -> Iterator[b.Block]:
    """The first findings, and every one whose remedy makes the program fit."""
    for process in report.processes:
        if not process.findings:
            continue
        yield b.Title("What to do")
        findings = [
            finding for number, finding in enumerate(process.findings) if _is_shown(number, finding)
        ]
        for finding in findings:
            yield from _remedy(finding)
        if not any(map(_helps, process.findings)) and len(findings) > 1:
            yield b.Note(
                "`ullage fit` looks for mixtures of techniques that fit", b.Tone.FAINT, indent=2
            )
        rest = len(process.findings) - len(findings)
        if rest:
            yield b.Note(
                f"and {rest} more: ullage explain {process.snapshot}", b.Tone.FAINT, indent=2
            )


def _is_shown(number: int, finding: Finding) -> bool:
    return number < _SHOWN or _helps(finding)


def _helps(finding: Finding) -> bool:
    return finding.is_said(MakesItFit.YES)


def _remedy(finding: Finding) -> Iterator[b.Note]:
    code = b.Word(finding.rule.code, b.Tone.BAD)
    yield b.Note(finding.what, indent=2, hang=FINDING_HANG, lead=code)
    # A setting that was tried and does not help is no advice.
    is_refuted = finding.is_said(MakesItFit.NO)
    if not (is_refuted and sets_allocator(finding)):
        yield b.Note(f"do: {finding.change}", indent=FINDING_HANG, hang=FINDING_HANG)
    if finding.trial is not None:
        yield trial_note(finding.trial)
