"""The document of a check, schema "ullage.check/1".

json.dumps(check_document(view), indent=2)
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from ullage.ground.protocol.plain import document_of, plain
from ullage.verbs.check.gate.compare import Comparison, Judgement
from ullage.verbs.check.gate.lock import Entry, Key
from ullage.verbs.check.gate.locking import LockReport
from ullage.verbs.check.gate.reasons import name_place
from ullage.verbs.check.gate.verdicts import Judged, exit_code_of
from ullage.verbs.document.fields import Document

if TYPE_CHECKING:
    from ullage.verbs.views.views import CheckView

CHECK_SCHEMA = "ullage.check/1"


def check_document(view: CheckView) -> Document:
    """The document of a check; sizes are bytes."""
    return {
        "schema": CHECK_SCHEMA,
        "configuration": view.path.name,
        "exit_code": int(exit_code_of(view.judged)),
        "scenarios": [_case(view, judged) for judged in view.judged],
    }


def _case(view: CheckView, judged: Judged) -> Document:
    return {
        **document_of(judged),
        "devices": [_device(view, judged, comparison) for comparison in judged.comparisons],
    }


def _device(view: CheckView, judged: Judged, comparison: Comparison) -> Document:
    changes, lines = comparison.changes, judged.measured[comparison.name].lines
    return {
        "name": comparison.name,
        "found": entry_document(comparison.entry)
        | {"full_after_steps": judged.measured[comparison.name].full_after_steps},
        "locked": None if comparison.locked is None else entry_document(comparison.locked),
        "judgements": [
            {
                "rule": judgement.rule.value,
                "level": judgement.name,
                **_sides(judgement),
                "is_kept": judgement.is_kept,
            }
            for judgement in comparison.judgements
        ],
        "by_category": plain(changes.categories),
        "by_module": plain(changes.modules),
        "by_place": [
            document_of(row) | {"where": name_place(row, lines)} for row in changes.places
        ],
        "differs": [
            {"name": name, "before": before, "after": after} for name, before, after in changes.keys
        ],
        "reasons": list(view.reasons(judged, comparison)) if _is_changed(comparison) else [],
    }


def _sides(judgement: Judgement) -> Document:
    """The figure that was found, and the limit: bytes, or a server's counts."""
    end = "" if judgement.is_count else "_bytes"
    return {f"found{end}": judgement.found_bytes, f"limit{end}": judgement.limit_bytes}


def _is_changed(comparison: Comparison) -> bool:
    return not comparison.is_kept or comparison.is_less


def entry_document(entry: Entry) -> Document:
    """The document of an entry of the lock."""
    return {
        "key": _key(entry.key),
        "basis": entry.basis.value,
        "assumed": list(entry.assumed),
        "findings": list(entry.findings),
        "peak_at": entry.moment,
        **{f"peak_{name}": size for name, size in entry.peaks._asdict().items()},
        "growth_bytes_per_step": entry.growth_bytes,
        "categories": dict(entry.categories),
        "modules": dict(entry.modules),
        "places": dict(entry.places),
        **({} if entry.served is None else {"served": entry.served._asdict()}),
    }


def _key(key: Key) -> Document:
    """The conditions; the engine is there where it is a server's."""
    return {name: text for name, text in asdict(key).items() if text or name != "engine"}


LOCK_SCHEMA = "ullage.lock/1"


def lock_document(report: LockReport) -> Document:
    """The document of a lock; sizes are bytes."""
    comparisons = {
        comparison.name: comparison.entry
        for case in report.judged
        for comparison in case.comparisons
    }
    return {
        "schema": LOCK_SCHEMA,
        "lock": report.path.name,
        "exit_code": int(report.exit_code),
        "written": {name: entry_document(comparisons[name]) for name in report.written},
        "removed": list(report.removed),
        "left": {name: entry_document(comparisons[name]) for name in report.left},
        "refused": {
            case.name: {"state": case.state.value, "reason": case.reason, "output": case.output}
            for case in report.refused
        },
    }
