"""The timeline of a device for the document: the bytes of each category and module over time."""

from __future__ import annotations

import numpy as np

from ullage.explain.moments.series import find_moments, sum_at_moments
from ullage.explain.owners.modules import ModuleOwners
from ullage.explain.owners.ownership import CATEGORIES
from ullage.explain.rules.case import Case
from ullage.log.snapshot import Int64Array
from ullage.verbs.document.fields import Document
from ullage.verbs.views.module_names import OUTSIDE, name_module

_MAX_MODULES = 16
_OTHERS = "other modules"


def series_document(case: Case) -> Document | None:
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
