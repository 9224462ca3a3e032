"""The pressure on the allocator in documents: times are seconds, sizes bytes."""

from __future__ import annotations

from dataclasses import asdict

from ullage.explain.pressure import Percentiles, PressureReport, explain_pressure
from ullage.report.document.fields import Document
from ullage.trace.durations import RELATIVE_ERROR
from ullage.trace.measured import Measured


def pressure_document(measured: Measured | None) -> Document | None:
    """The `pressure` of a recorded process; None: it was not recorded on a GPU, or by a version
    that did not measure this.
    """
    if measured is None or measured.pressure is None:
        return None
    report = explain_pressure(measured.pressure)
    return {
        "relative_error": round(RELATIVE_ERROR, 4),
        "step_s": _times(report.steps),
        "last_steps_s": _times(report.recent_steps),
        "comparison": report.sentence,
        "num_alloc_retries": report.num_alloc_retries,
        "num_device_frees": report.num_device_frees,
        "windows": [
            {**asdict(row), "fragmented_frac": round(row.fragmented_frac, 4)}
            for row in report.rows
        ],
        "num_requests": measured.pressure.num_requests,
        "requests": [
            {"name": group.name, "latency_s": _times(group.all),
             "last_latency_s": _times(group.recent)}
            for group in report.requests
        ],
        "last_requests": [row._asdict() for row in measured.pressure.last_requests],
        "tokens": _tokens(report),
    }  # fmt: skip


def _times(percentiles: Percentiles | None) -> Document | None:
    if percentiles is None:
        return None
    return {
        "num": percentiles.num,
        "p50": percentiles.p50_s,
        "p90": percentiles.p90_s,
        "p99": percentiles.p99_s,
    }


def _tokens(report: PressureReport) -> Document | None:
    """How memory grew in the generation with the most calls of the model."""
    if report.call_bytes is None:
        return None
    return {
        "bytes_per_call": report.call_bytes,
        "growth": [{"call": call, "bytes": size} for call, size in report.growth],
    }
