"""The document of a search for a ladder: the ladder file, schema "ullage.find_ladder/1", and how
it was found.

json.dumps(ladder_document(report, ladder), indent=2)
"""

from __future__ import annotations

from typing import Any

from ullage.plan.sizes.rungs import LadderReport
from ullage.techniques.ladder_file import LadderFile


def ladder_document(report: LadderReport, ladder: LadderFile) -> dict[str, Any]:
    """The document; sizes of memory are bytes, times are seconds by the clock."""
    return {
        **ladder.document,
        "exit_code": int(report.exit_code),
        "failure": report.failure or None,
        "warnings": list(report.warnings),
        "sizes": list(report.sizes),
        "names": list(report.names),
        "left_out": dict(report.left_out),
        "num_runs": report.num_runs,
        "wall_s": round(report.wall_s, 3),
    }
