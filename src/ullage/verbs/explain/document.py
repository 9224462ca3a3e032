"""The document of `ullage explain`, schema "ullage.explain/1".

json.dumps(explain_document(view), indent=2)
"""

from __future__ import annotations

import numpy as np

from ullage.explain.pressure import find_pressure
from ullage.explain.reconcile import reconcile
from ullage.explain.rules.case import Case, category_of, make_case
from ullage.explain.snapshot import DeviceSnapshot
from ullage.ground.protocol.plain import document_of, plain
from ullage.verbs.document.fields import Document
from ullage.verbs.explain.document_recorded import recorded_document
from ullage.verbs.explain.document_series import series_document
from ullage.verbs.explain.text import explain_line
from ullage.verbs.explain.text_parts import describe_device
from ullage.verbs.views.views import ExplainView

EXPLAIN_SCHEMA = "ullage.explain/1"
_MAX_SITES = 200
_MAX_PINNED = 50


def explain_document(view: ExplainView) -> Document:
    """The document: the contents of the text report, with complete tables."""
    report = view.report
    record = report.record
    return {
        "schema": EXPLAIN_SCHEMA,
        "file": view.path,
        "verdict": explain_line(view),
        "is_out_of_memory": any(finding.is_fatal for finding in view.findings),
        "written_by": None if record is None else {
            "ullage": record.ullage, "torch": record.torch, "argv": list(record.argv),
        },
        "contradictions": list(report.contradictions),
        "unknown": dict(report.snapshot.unknown),
        "remark": report.record_remark or None,
        "findings": plain(view.findings),
        "devices": [_device(view, device) for device in report.devices],
        **plain(find_pressure(record) or {}),
    }  # fmt: skip


def _device(view: ExplainView, device: DeviceSnapshot) -> Document:
    case = make_case(view.report, device)
    blocks = device.replay.blocks
    return {
        "index": device.index,
        "trace": describe_device(view.report, device),
        "num_events": device.replay.num_events,
        "owners": "recorded" if device.owners.is_known else "guessed",
        "peak": {
            **_moment(case, device.peak_event),
            "allocated_bytes": device.peak_allocated_bytes,
            "requested_bytes": int(blocks.requested_bytes[case.is_live].sum()),
            "by_category": plain(device.owners_at_peak),
            "by_site": plain(device.sites_at_peak[:_MAX_SITES]),
            "by_module": plain(device.modules_at_peak),
            "brief_bytes": 0 if device.spike is None else device.spike.size_bytes,
            "without_brief_bytes": device.peak_allocated_bytes if device.spike is None
            else device.spike.lower_peak_bytes,
        },
        "reserved": _reserved(case, view.request_bytes),
        "steps": _steps(case),
        "recorded": recorded_document(case),
        "timeline": series_document(case),
        "out_of_memory": plain(device.shortage),
        # From nvidia-smi's figures down to the requested bytes; null if the file has no figure.
        "whole_device": {
            "name": None if device.totals is None else device.totals.name,
            **document_of(reconcile(device.fragmentation, device.totals)),
        },
    }  # fmt: skip


def _reserved(case: Case, request_bytes: int | None) -> Document:
    lay = case.device.fragmentation
    return {
        **_moment(case, lay.event),
        **document_of(lay),
        "pinned": [
            {"address": segment.address, "bytes": segment.size_bytes,
             "live_bytes": segment.live_bytes,
             "largest_free_bytes": segment.largest_free_bytes,
             "blocks": [_block(case, block) for block in segment.blocks[:8]]}
            for segment in lay.pinned[:_MAX_PINNED]
        ],
        "request": _request(case, request_bytes),
    }  # fmt: skip


def _moment(case: Case, event: int) -> Document:
    times = case.report.snapshot.events_of(case.device.index).time_us
    is_timed = event >= 0 and bool(times.any())
    return {
        "event": event,
        "seconds": (int(times[event]) - int(times[0])) / 1e6 if is_timed else None,
        "where": case.device.course.describe(event) or None,
    }


def _block(case: Case, block: int) -> Document:
    return {
        "bytes": int(case.size_bytes[block]),
        "category": category_of(case, block).value,
        "site": case.site(block),
    }


def _request(case: Case, request_bytes: int | None) -> Document | None:
    if request_bytes is None:
        return None
    return {"bytes": request_bytes, "room_for": case.device.fragmentation.room_for(request_bytes)}


def _steps(case: Case) -> Document:
    device, course = case.device, case.device.course
    sizes = device.levels.allocated_bytes[course.step_ends] if course.num_steps else np.empty(0)
    return {
        "source": course.source.value,
        "count": course.num_steps,
        "held_bytes": [int(size) for size in sizes],
        "growth": [
            {"site": case.report.sites.names[growth.site],
             "category": category_of(case, growth.blocks[-1]).value,
             "bytes": growth.size_bytes, "num_blocks": growth.num_blocks,
             "bytes_per_step": growth.bytes_per_step, "is_replaced": growth.is_replaced}
            for growth in device.growth
        ],
    }  # fmt: skip
