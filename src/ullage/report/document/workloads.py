"""The document of an estimate of speech, pictures or an index, schema "ullage.estimate/2"."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ullage.estimate.workloads.answer import WorkloadEstimate
from ullage.report.document.estimate import ESTIMATE_SCHEMA


def workload_document(estimate: WorkloadEstimate) -> dict[str, Any]:
    """The document; sizes are bytes."""
    verdict = estimate.verdict
    return {
        "schema": ESTIMATE_SCHEMA,
        "kind": estimate.kind,
        "subject": estimate.subject,
        "verdict": verdict and verdict.field,
        "gpu": estimate.gpu,
        "places": [
            {
                "name": place.name,
                "capacity_bytes": place.capacity_bytes,
                "low_bytes": place.low_bytes,
                "bytes": place.bytes,
                "high_bytes": place.high_bytes,
                "terms": [asdict(term) for term in place.terms],
            }
            for place in estimate.places
        ],
        "figures": [
            {"name": name, "value": value, "unit": unit} for name, value, unit in estimate.figures
        ],
        "assumptions": list(estimate.assumptions),
    }
