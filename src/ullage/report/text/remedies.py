"""The advice for a program that ran out of memory, a part of the report of a run."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from rich.text import Text

from ullage.explain.remedies import sets_allocator
from ullage.explain.rules.rule import Finding
from ullage.explain.run import RunReport
from ullage.explain.trial import MakesItFit
from ullage.report.text.explain import trial_text

_SHOWN = 3
_MARGIN = " " * 9


def remedy_parts(report: RunReport, width: int) -> Iterator[Text]:
    """The first findings, and every one whose remedy makes the program fit."""
    for process in report.processes:
        if not process.findings:
            continue
        yield Text("\nWhat to do", style="bold")
        findings = [
            finding for number, finding in enumerate(process.findings) if _is_shown(number, finding)
        ]
        for finding in findings:
            yield from _remedy(finding, width)
        if not any(map(_helps, process.findings)) and len(findings) > 1:
            yield Text("  `ullage fit` looks for mixtures of techniques that fit", style="dim")
        rest = len(process.findings) - len(findings)
        if rest:
            yield Text(f"  and {rest} more: ullage explain {process.snapshot}", style="dim")


def _is_shown(number: int, finding: Finding) -> bool:
    return number < _SHOWN or _helps(finding)


def _helps(finding: Finding) -> bool:
    return finding.is_said(MakesItFit.YES)


def _remedy(finding: Finding, width: int) -> Iterator[Text]:
    head = Text("  ")
    head.append(finding.rule.code, style="bold red")
    yield head.append("  " + "\n".join(_wrap(finding.what, width))[9:])
    # A setting that was tried and does not help is no advice.
    is_refuted = finding.is_said(MakesItFit.NO)
    if not (is_refuted and sets_allocator(finding)):
        yield Text("\n".join(_wrap(f"do: {finding.change}", width)))
    if finding.trial is not None:
        yield trial_text(finding.trial, width, _MARGIN)


def _wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=_MARGIN, subsequent_indent=_MARGIN,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
