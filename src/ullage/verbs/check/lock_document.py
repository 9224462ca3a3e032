"""The document of a lock, schema "ullage.lock/1".

json.dumps(lock_document(report), indent=2)
"""

from __future__ import annotations

from ullage.verbs.check.document import entry_document
from ullage.verbs.check.gate.locking import LockReport
from ullage.verbs.document.fields import Document

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
