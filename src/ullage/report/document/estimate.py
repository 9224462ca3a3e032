"""The document of an estimate of training, schema "ullage.estimate/1".

json.dumps(estimate_document(answer), indent=2)
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from ullage.estimate.term import OwnedTerm
from ullage.estimate.training.answer import Answer
from ullage.estimate.training.estimate import TrainingEstimate
from ullage.estimate.training.timeline import Moment

ESTIMATE_SCHEMA: Final = "ullage.estimate/1"


def estimate_document(answer: Answer) -> dict[str, Any]:
    """The document of an answer; sizes are bytes."""
    one = answer.estimate
    return {
        "schema": ESTIMATE_SCHEMA,
        "kind": "training",
        "verdict": name_verdict(one),
        "model": {
            "name": one.model,
            "source": answer.source,
            "num_parameters": one.num_parameters,
            "num_trainable": one.num_trainable,
            "num_rank_parameters": one.num_rank_parameters,
        },
        "recipe": asdict(one.recipe),
        "gpu": one.gpu,
        "capacity_bytes": one.capacity_bytes,
        "used_bytes": one.bytes,
        "used_low_bytes": one.low_bytes,
        "used_high_bytes": one.high_bytes,
        "headroom_bytes": one.headroom_bytes,
        "terms": [_term(term) for term in one.terms],
        "peak": _moment(one.peak),
        "phases": {name: _moment(moment) for name, moment in one.peaks.items()},
        "timeline": [asdict(stretch) for stretch in one.stretches],
        "host_bytes": one.host.memory.likely,
        "host_low_bytes": one.host.memory.low,
        "host_high_bytes": one.host.memory.high,
        "disk_bytes": one.host.disk_bytes,
        "work": one.work,
        "assumptions": list(one.assumptions),
        "which_gpu": [asdict(row) for row in answer.gpus],
        "largest": None if answer.largest is None else asdict(answer.largest),
        "knobs": [asdict(knob) for knob in answer.knobs],
    }


def _term(term: OwnedTerm) -> dict[str, Any]:
    return asdict(term) | {"category": term.category.value}


def _moment(moment: Moment) -> dict[str, Any]:
    return asdict(moment) | {
        "by_category": {key.value: size for key, size in moment.by_category.items()},
        "requested_by_category": {
            key.value: size for key, size in moment.requested_by_category.items()
        },
    }


def name_verdict(estimate: TrainingEstimate) -> str | None:
    """The verdict as documents name it; None: no GPU was chosen, or too little is known."""
    if estimate.capacity_bytes is None or (estimate.is_floor and estimate.fits is None):
        return None
    return {True: "fits", False: "does_not_fit", None: "may_fit"}[estimate.fits]
