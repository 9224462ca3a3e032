"""The document of an estimate of serving, schema "ullage.estimate/2".

json.dumps(serving_document(estimate, source), indent=2)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from ullage.estimate.serving.gpu_ranking import ServingRow
from ullage.estimate.serving.knobs import ServingKnob
from ullage.estimate.serving.serving_plan import ServingEstimate
from ullage.report.document.estimate import ESTIMATE_SCHEMA

_LORA_FIELDS: Final = ("lora_slots", "lora_rank")  # only in documents with slots


def serving_document(
    serving_estimate: ServingEstimate,
    source: str,
    gpus: Sequence[ServingRow] = (),
    knobs: Sequence[ServingKnob] = (),
) -> dict[str, Any]:
    """The document of an estimate; sizes are bytes, three numbers are low, likely and high."""
    serving_plan = serving_estimate.plan
    unstated = ("gpu", "draft") if serving_plan.lora_slots else ("gpu", "draft", *_LORA_FIELDS)
    plan = {
        name: getattr(serving_plan, name) for name in serving_plan.__slots__ if name not in unstated
    }
    if serving_plan.draft is not None:
        plan["draft"] = serving_plan.draft.name
    return {
        "schema": ESTIMATE_SCHEMA,
        "kind": "serving",
        "verdict": serving_estimate.verdict and serving_estimate.verdict.field,
        "reason": serving_estimate.reason,
        "model": {
            "name": serving_estimate.model,
            "source": source,
            "num_parameters": serving_estimate.num_parameters,
        },
        "plan": plan,
        "gpu": None if serving_estimate.plan.gpu is None else serving_estimate.plan.gpu.slug,
        "capacity_bytes": serving_estimate.capacity_bytes,
        "terms": [asdict(term) for term in serving_estimate.terms],
        "kv_groups": [asdict(group) for group in serving_estimate.kv_groups],
        "kv_bytes": list(serving_estimate.kv_bytes),
        "block_size": serving_estimate.block_size,
        "block_bytes": serving_estimate.block_bytes,
        "num_blocks": list(serving_estimate.num_blocks),
        "tokens": list(serving_estimate.tokens),
        "concurrency": list(serving_estimate.concurrency),
        "users": list(serving_estimate.users),
        "longest": list(serving_estimate.longest),
        "remarks": list(serving_estimate.remarks),
        "which_gpu": [asdict(row) for row in gpus],
        "knobs": [asdict(knob) for knob in knobs],
    }
