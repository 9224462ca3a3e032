"""The document of a comparison of two snapshots, schema "ullage.diff/1".

json.dumps(diff_document(report), indent=2)
"""

from __future__ import annotations

from ullage.explain.compare.changes import Change, Side
from ullage.explain.compare.diff import DiffReport, PhaseChange
from ullage.explain.compare.totals import Totals
from ullage.report.document.fields import Document

DIFF_SCHEMA = "ullage.diff/1"
_MAX_SITES = 12


def diff_document(report: DiffReport) -> Document:
    """The document of a comparison."""
    return {
        "schema": DIFF_SCHEMA,
        "before": _peaks(report.totals[0]),
        "after": _peaks(report.totals[1]),
        "changed_allocated_bytes": report.changed_bytes,
        "changed_reserved_bytes": report.changed_reserved_bytes,
        "changed_outside_bytes": report.changed_outside_bytes,
        "compared_until": report.until or None,
        "categories_are": "known" if report.is_known else "guessed",
        "causes": [
            {"kind": cause.kind.value, "rule": cause.code or None, "text": cause.text,
             "changed_bytes": cause.changed_bytes}
            for cause in report.causes
        ],
        "differences": [
            {"name": difference.name, "before": difference.before, "after": difference.after}
            for difference in report.differences
        ],
        "phases": [_phase(change) for change in report.phases],
        "by_category": [_change(change) for change in report.by_category],
        "by_module": [
            {"path": module.path, "before_bytes": module.before_bytes,
             "after_bytes": module.after_bytes, "changed_bytes": module.changed_bytes}
            for module in report.by_module
        ],
        "by_site": [_change(change) for change in report.by_site],
        "measured": [
            {"term": term.name, "predicted_low_bytes": term.low_bytes,
             "predicted_high_bytes": term.high_bytes, "measured_bytes": term.measured_bytes,
             "is_inside": term.is_inside}
            for term in report.terms
        ],
    }  # fmt: skip


def _peaks(totals: Totals) -> Document:
    return {name: value for name, value in totals._asdict().items() if name != "by_category"}


def _phase(change: PhaseChange) -> Document:
    return {
        "name": change.name,
        "before_bytes": change.before_bytes,
        "after_bytes": change.after_bytes,
        "changed_bytes": change.changed_bytes,
        "by_category": [_change(category) for category in change.by_category],
        "by_site": [_change(site) for site in change.by_site[:_MAX_SITES]],
    }


def _change(change: Change) -> Document:
    return {
        "name": change.name,
        "category": change.category.value if change.category else None,
        "before": _side(change.before),
        "after": _side(change.after),
        "changed_bytes": change.changed_bytes,
        "looks_like": change.looks_like,
    }


def _side(side: Side) -> Document:
    return {"bytes": side.size_bytes, "blocks": side.num_blocks, "lines": list(side.lines)}
