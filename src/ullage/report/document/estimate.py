"""The document of an estimate of training, schema "ullage.estimate/2".

json.dumps(estimate_document(answer), indent=2)
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from ullage.estimate.training.answer import Answer
from ullage.estimate.training.estimate import TrainingEstimate
from ullage.estimate.training.totals import Moment

ESTIMATE_SCHEMA: Final = "ullage.estimate/2"


def estimate_document(answer: Answer) -> dict[str, Any]:
    """The document of an estimate; sizes are bytes."""
    estimate = answer.estimate
    return {
        "schema": ESTIMATE_SCHEMA,
        "kind": "training",
        "verdict": name_verdict(estimate),
        "model": {
            "name": estimate.model,
            "source": answer.source,
            "num_parameters": estimate.num_parameters,
            "num_trainable": estimate.num_trainable,
            "num_rank_parameters": estimate.num_rank_parameters,
        },
        "recipe": asdict(estimate.recipe),
        "gpu": estimate.gpu,
        "capacity_bytes": estimate.capacity_bytes,
        "used_bytes": estimate.bytes,
        "used_low_bytes": estimate.low_bytes,
        "used_high_bytes": estimate.high_bytes,
        "headroom_bytes": estimate.headroom_bytes,
        "allocated_low_bytes": estimate.allocated.low,
        "allocated_bytes": estimate.allocated.likely,
        "allocated_high_bytes": estimate.allocated.high,
        "reserved_bytes": estimate.reserved_bytes,
        "terms": [asdict(term) | {"category": term.category.value} for term in estimate.terms],
        "peak": _moment(estimate.peak),
        "phases": {name: _moment(moment) for name, moment in estimate.peaks.items()},
        "host_bytes": estimate.host.memory.likely,
        "host_low_bytes": estimate.host.memory.low,
        "host_high_bytes": estimate.host.memory.high,
        "disk_bytes": estimate.host.disk_bytes,
        "work": estimate.work,
        "assumptions": list(estimate.assumptions),
        "which_gpu": [asdict(row) for row in answer.gpus],
        "largest": None if answer.largest is None else asdict(answer.largest),
        "knobs": [asdict(knob) for knob in answer.knobs],
        "time": _time(answer),
    }


def _time(answer: Answer) -> dict[str, Any] | None:
    """As in the document of a run."""
    if answer.time is None:
        return None
    from ullage.report.document.time import time_document

    return time_document(answer.time, answer.expense, None)


def _moment(moment: Moment) -> dict[str, Any]:
    return asdict(moment) | {
        "by_category": {key.value: size for key, size in moment.by_category.items()},
        "requested_by_category": {
            key.value: size for key, size in moment.requested_by_category.items()
        },
    }


def name_verdict(estimate: TrainingEstimate) -> str | None:
    """The verdict's name in documents; None: no GPU was chosen, or too little is known."""
    return None if estimate.verdict is None else estimate.verdict.field
