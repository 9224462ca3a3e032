"""The document of `ullage explain`, schema "ullage.explain/1".

json.dumps(explain_document(view), indent=2)
"""

from __future__ import annotations

import numpy as np

from ullage.explain.moments.levels import find_moments, sum_at_moments
from ullage.explain.owners.dead_weight import DeadWeight
from ullage.explain.owners.modules import ModuleOwners
from ullage.explain.owners.ownership import CATEGORIES
from ullage.explain.pressure import find_pressure
from ullage.explain.reconcile import reconcile
from ullage.explain.rules.case import Case, category_of, make_case
from ullage.explain.rules.lives import when_used
from ullage.explain.snapshot import DeviceSnapshot
from ullage.ground.protocol.plain import document_of, plain
from ullage.log.snapshot import Int64Array
from ullage.verbs.document.fields import Document
from ullage.verbs.explain.text import explain_line
from ullage.verbs.explain.text_parts import describe_device
from ullage.verbs.views.module_names import OUTSIDE, name_module
from ullage.verbs.views.views import ExplainView

EXPLAIN_SCHEMA = "ullage.explain/1"
_MAX_SITES = 200
_MAX_PINNED = 50
_MAX_DEAD = 200
_MAX_MODULES = 16
_OTHERS = "other modules"


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
        "recorded": _recorded(case),
        "timeline": _series(case),
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
        "request": None if request_bytes is None else {
            "bytes": request_bytes, "room_for": lay.room_for(request_bytes),
        },
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


def _recorded(case: Case) -> Document | None:
    """The keys that need a run recorded by ullage; None for a snapshot that it did not write."""
    recorded = case.device.recorded
    if recorded is None:
        return None
    tokens, transfers, pinned = recorded.tokens, recorded.transfers, recorded.pinned
    return {
        "dead": None if recorded.dead is None else _dead(case, recorded.dead),
        "transfers": None if transfers is None
        else [
            {"to": "device" if copies.is_to_device else "host", **document_of(copies),
             "sites": sorted({case.site(block) for block in copies.blocks})}
            for copies in transfers
        ],
        "pinned_bytes": None if pinned is None else pinned.size_bytes.tolist(),
        "tokens": None if tokens is None else {
            **document_of(tokens),
            "sites": [case.report.sites.names[site] for site in tokens.sites],
        },
    }  # fmt: skip


def _dead(case: Case, dead: DeadWeight) -> Document:
    modules = case.device.owners.modules
    return {
        "bytes": dead.size_bytes,
        "num_blocks": len(dead.blocks),
        "without_bytes": dead.lower_peak_bytes,
        "blocks": [
            {
                "bytes": int(case.size_bytes[block]),
                "category": category_of(case, block).value,
                "module": None if modules is None or modules.index[block] < 0
                else name_module(modules.names[modules.index[block]]),
                "site": case.site(block),
                "last_use_event": int(dead.last_use[block]),
                "last_used": when_used(case, int(dead.last_use[block])),
                "free_event": int(case.device.replay.blocks.death[block]),
            }
            for block in dead.blocks[:_MAX_DEAD].tolist()
        ],
    }  # fmt: skip


def _series(case: Case) -> Document | None:
    """The bytes of each category and each module at some moments, each the highest of an interval.
    Both add up to the allocated bytes. None for a file without a trace.
    """
    device = case.device
    if device.replay.num_events <= 1:
        return None
    moments = find_moments(device.levels)
    times = case.report.snapshot.events_of(device.index).time_us
    seconds = (times[np.maximum(moments, 0)] - times[0]) / 1e6 if times.any() else None
    category = device.owners.category.astype(np.int64)
    sizes = sum_at_moments(device.replay, moments, category, len(CATEGORIES))
    modules = device.owners.modules
    return {
        "event": moments.tolist(),
        "seconds": None if seconds is None else seconds.round(6).tolist(),
        "allocated_bytes": device.levels.allocated_bytes[moments + 1].tolist(),
        "reserved_bytes": device.levels.reserved_bytes[moments + 1].tolist(),
        "by_category": {
            category.value: row.tolist()
            for category, row in zip(CATEGORIES, sizes, strict=True)
            if row.any()
        },
        "by_module": None if modules is None else _by_module(case, modules, moments),
    }  # fmt: skip


def _by_module(case: Case, modules: ModuleOwners, moments: Int64Array) -> Document:
    """The modules with the most bytes at any moment, and all others together."""
    count = len(modules.names)
    group = np.where(modules.index < 0, count, modules.index).astype(np.int64)
    sizes = sum_at_moments(case.device.replay, moments, group, count + 1)
    names = [*(name_module(name) for name in modules.names), OUTSIDE]
    order = np.argsort(-sizes.max(axis=1, initial=0), kind="stable")
    series = {names[row]: sizes[row].tolist() for row in order[:_MAX_MODULES] if sizes[row].any()}
    rest = sizes[order[_MAX_MODULES:]].sum(axis=0)
    return series | ({_OTHERS: rest.tolist()} if rest.any() else {})
