"""All rules, and their findings in a snapshot.

findings = find_findings(report)
findings[0].rule.code, findings[0].gain_bytes
"""

from __future__ import annotations

from difflib import get_close_matches
from types import MappingProxyType

import numpy as np

from ullage.explain.rules import (
    activations,
    allocator,
    attention,
    copies,
    gradients,
    graphs,
    lives,
    oom,
    optimizer,
    passes,
    pipeline,
    residents,
)
from ullage.explain.rules.case import make_case
from ullage.explain.rules.rule import Finding, Kind, Rule
from ullage.explain.snapshot import SnapshotReport
from ullage.ground.errors import SpecError

_ALL = (
    *optimizer.RULES, *gradients.RULES, *copies.RULES, *graphs.RULES, *passes.RULES,
    *activations.RULES, *attention.RULES, *residents.RULES, *lives.RULES, *allocator.RULES,
    *oom.RULES, *pipeline.RULES,
)  # fmt: skip
RULES = MappingProxyType({rule.code: rule for rule in sorted(_ALL, key=lambda rule: rule.code)})
_ORDER = (Kind.FAULT, Kind.CHOICE, Kind.TIME)
# A finding of a general rule is dropped where other rules have found this share of its blocks.
_SAME_FRAC = 0.5


def find_rule(code: str) -> Rule:
    """A rule by its code.

    Raises:
        SpecError: there is none.
    """
    rule = RULES.get(code.upper())
    if rule is None:
        close = get_close_matches(code.upper(), RULES, n=1)
        meant = f"did you mean {close[0]}?" if close else f"there are {', '.join(RULES)}"
        raise SpecError(f"there is no rule {code!r}; {meant}")
    return rule


def find_findings(report: SnapshotReport) -> tuple[Finding, ...]:
    """The findings of all rules: the cause of an OOM first, then faults, choices and lost time;
    certain ones before guesses, and the most bytes first.
    """
    findings: list[Finding] = []
    for device in report.devices:
        case = make_case(report, device)
        is_fatal = device.shortage is not None and not device.shortage.was_survived
        for rule in RULES.values():
            findings += [
                Finding(
                    rule=rule, device=device.index, what=finding.what, evidence=finding.evidence,
                    gain_bytes=finding.gain_bytes, change=finding.change or rule.change,
                    is_guess=finding.is_guess, blocks=finding.blocks, relief=finding.relief,
                    is_fatal=is_fatal and rule.code.startswith(oom.FAMILY),
                )
                for finding in rule.find(case)
            ]  # fmt: skip
    findings = [
        finding
        for finding in findings
        if not finding.rule.is_general or not _is_covered(finding, findings, report)
    ]
    with_findings = {finding.device for finding in findings if not finding.rule.is_last}
    findings = [
        finding
        for finding in findings
        if not (finding.rule.is_last and finding.device in with_findings)
    ]
    return tuple(sorted(findings, key=lambda finding: (
        not finding.is_fatal, finding.is_guess, _ORDER.index(finding.rule.kind),
        -finding.gain_bytes,
    )))  # fmt: skip


def _is_covered(finding: Finding, others: list[Finding], report: SnapshotReport) -> bool:
    """True if other rules have found most of the same blocks."""
    other_blocks = [
        other.blocks
        for other in others
        if not other.rule.is_general and other.device == finding.device and other.blocks is not None
    ]
    if finding.blocks is None or not len(finding.blocks) or not other_blocks:
        return False
    device = next(device for device in report.devices if device.index == finding.device)
    sizes = device.replay.blocks.size_bytes
    same = np.isin(finding.blocks, np.concatenate(other_blocks))
    return bool(sizes[finding.blocks[same]].sum() >= _SAME_FRAC * sizes[finding.blocks].sum())
