"""Findings in documents, with whether their remedies make the program fit."""

from __future__ import annotations

from ullage.explain.rules.rule import Finding
from ullage.explain.trial import Trial
from ullage.report.document.fields import Document


def finding_document(finding: Finding) -> Document:
    """The document of a finding."""
    return {
        "code": finding.rule.code,
        "title": finding.rule.title,
        "kind": finding.rule.kind.value,
        "device": finding.device,
        "what": finding.what,
        "evidence": list(finding.evidence),
        "gain_bytes": finding.gain_bytes,
        "cost": finding.rule.cost,
        "change": finding.change,
        "is_guess": finding.is_guess,
        "tried": _trial(finding.trial),
    }


def _trial(trial: Trial | None) -> Document | None:
    if trial is None:
        return None
    return {
        "makes_it_fit": trial.makes_it_fit.value,
        "reason": trial.reason,
        "bytes": trial.peak_bytes,
        "plan": None if trial.plan is None else dict(trial.plan),
    }
