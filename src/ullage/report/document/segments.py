"""The document of a comparison of segments, schema "ullage.segments/1".

json.dumps(segments_document(report), indent=2)
"""

from __future__ import annotations

from typing import Any, Final

from ullage.plan.sizes.chains import ChainReport, Cut

SEGMENTS_SCHEMA: Final = "ullage.segments/1"


def segments_document(report: ChainReport) -> dict[str, Any]:
    """The document; sizes of memory are bytes, times are seconds by the cost model."""
    best = report.best
    return {
        "schema": SEGMENTS_SCHEMA,
        "program": list(report.program),
        "torch": report.torch,
        "gpu": report.gpu.slug,
        "exit_code": int(report.exit_code),
        "failure": report.failure or None,
        "chain": report.path,
        "modules": list(report.modules),
        "num_units": report.num_units,
        "least": None if best is None else best.name,
        "plan": None if best is None or best.plan is None else best.plan.document,
        "segmentations": [_cut(cut) for cut in report.cuts],
        "num_runs": report.num_runs,
        "wall_s": round(report.wall_s, 3),
    }


def _cut(cut: Cut) -> dict[str, Any]:
    return {
        "name": cut.name,
        "lengths": list(cut.lengths),
        "spares_last": cut.spares_last,
        "peak_used_bytes": cut.used_bytes,
        "peak_allocated_bytes": cut.allocated_bytes,
        "recomputed": round(cut.recomputed, 6),
        "step_s": cut.step_s,
        "why_not": cut.why_not or None,
    }
