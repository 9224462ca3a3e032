"""The document of replays under other settings, schema "ullage.what_if/1".

json.dumps(what_if_document(report), indent=2)
"""

from __future__ import annotations

from ullage.report.document.fields import Document
from ullage.whatif.outcomes import Check, Tried, WhatIfReport
from ullage.whatif.settings import MEANINGS, Family

WHAT_IF_SCHEMA = "ullage.what_if/1"


def what_if_document(report: WhatIfReport) -> Document:
    """The document of the replays."""
    recommended = report.recommended
    return {
        "schema": WHAT_IF_SCHEMA,
        "device": report.device,
        "torch": report.torch,
        "gpu": report.gpu,
        "total_bytes": report.total_bytes,
        "context_bytes": report.context_bytes,
        "num_requests": report.num_requests,
        "is_whole_trace": report.is_whole,
        "check": _check_document(report.check),
        "lower_bound_bytes": report.lower_bound_bytes,
        "packing": {"bytes": report.packing.size_bytes, "method": report.packing.method},
        "tried": [_tried_document(tried) for tried in report.tried],
        "recommended": None if recommended is None else recommended.setting.text,
        "on_gpus": [
            {"gpu": gpu.gpu, "total_bytes": gpu.total_bytes, **_tried_document(gpu.tried)}
            for gpu in report.on_gpus
        ],
        "meanings": {family.value: MEANINGS[family] for family in list_families(report)},
        "contradictions": list(report.contradictions),
        "notes": list(report.notes),
    }


def _check_document(check: Check) -> Document:
    return {
        "is_exact": check.is_exact,
        "recorded_peak_reserved_bytes": check.recorded_reserved_bytes,
        "replayed_peak_reserved_bytes": check.replayed_reserved_bytes,
        "num_recorded_segments": check.num_recorded_segments,
        "num_replayed_segments": check.num_replayed_segments,
        "has_same_segments": check.has_same_segments,
        "reasons": list(check.reasons),
    }


def _tried_document(tried: Tried) -> Document:
    outcome = tried.outcome
    shared = {
        "settings": tried.setting.text,
        "memory_fraction": tried.setting.fraction,
        "family": tried.setting.family.value,
        "conflicts": list(tried.conflicts),
    }
    if outcome is None:
        return {**shared, "refused": tried.refusal}
    return {
        **shared,
        "fits": outcome.fits,
        "peak_requested_bytes": outcome.peak_requested_bytes,
        "peak_allocated_bytes": outcome.peak_allocated_bytes,
        "peak_reserved_bytes": outcome.peak_reserved_bytes,
        "unused_bytes": outcome.unused_bytes,
        "num_segments": len(outcome.segments),
        "num_alloc_retries": outcome.num_retries,
        "num_device_allocs": outcome.num_device_allocs,
        "failed_event": outcome.failed_event,
        "num_failed_again": outcome.num_failed_attempts,
        "decided_by": outcome.decider.value,
    }


def list_families(report: WhatIfReport) -> list[Family]:
    """The families of the settings, in the order of their first settings."""
    return list(dict.fromkeys(tried.setting.family for tried in report.tried[1:]))
