"""The time of the last step on a page: its work as columns, and the memory in use beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ullage.clock.step_time import Span, StepTime
from ullage.explain.moments.step_levels import StepLevels
from ullage.verbs.page.columns import Packing
from ullage.verbs.text.time.numbers import format_as, format_share
from ullage.verbs.views.module_names import name_timed_module
from ullage.verbs.views.palette import IDLE_LOOK, kind_look


@dataclass(frozen=True, slots=True)
class StepPage:
    """The last step of a device: its time, and the memory in use over it."""

    time: StepTime
    levels: StepLevels


def pack_step(packed: Packing, step: StepPage) -> dict[str, Any]:
    """Adds the columns of a step, times in nanoseconds; returns their part of the header."""
    spans = sorted(step.time.spans, key=lambda span: span.start_s)
    packed.add("span_start", _nanoseconds([span.start_s for span in spans]), is_sorted=True)
    packed.add("span_life", _nanoseconds([span.duration_s for span in spans]))
    packed.add("span_stream", np.array([span.stream for span in spans], np.int64))
    names = packed.add_texts("span_name", [span.name for span in spans])
    kinds = packed.add_texts("span_kind", [_kind(span) for span in spans])
    modules = packed.add_texts("span_module", [name_timed_module(span.module) for span in spans])
    parts = packed.add_texts("span_part", [span.part for span in spans])
    levels = step.levels
    packed.add("level_start", _nanoseconds(levels.start_s.tolist()), is_sorted=True)
    packed.add("level_allocated", levels.allocated_bytes)
    packed.add("level_reserved", levels.reserved_bytes)
    return {
        "step_s": step.time.step.s,
        "kinds": [{"label": kind, "color": kind_look(kind).color} for kind in kinds],
        "names": names,
        "modules": modules,
        "parts": parts,
        "rows": _rows(step.time),
    }


def _kind(span: Span) -> str:
    return "host waits" if span.stream < 0 else span.category


def _nanoseconds(seconds: list[float]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.rint(np.array(seconds, np.float64) * 1e9).astype(np.int64)


def _rows(time: StepTime) -> list[dict[str, str]]:
    rows = [(kind_look(kind.name), kind.exposed.s) for kind in time.categories]
    rows.append((IDLE_LOOK, time.device_idle.s))
    return [
        {
            "label": look.label,
            "color": look.color,
            "seconds": format_as(seconds, time.step.s),
            "share": format_share(seconds, time.step.s),
        }
        for look, seconds in rows
    ]
