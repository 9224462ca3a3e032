"""The document of a server's run, schema "ullage.serve/1".

json.dumps(serve_document(report), indent=2)

`real_s` is what the phases took on this machine, and differs from run to run.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ullage.serve.cache_bytes import real_cache
from ullage.serve.curve import Curve
from ullage.serve.measures import ClassMeasures, Measures, OccupancyRow, Percentiles
from ullage.serve.outcome import Engine, Outcome
from ullage.serve.report import ServeReport
from ullage.serve.traffic import Traffic

SERVE_SCHEMA: Final = "ullage.serve/1"


def serve_document(report: ServeReport) -> dict[str, Any]:
    """The document; sizes are bytes, times are virtual seconds; null: there is none."""
    served, measures = report.served, report.measures
    outcome = served.outcome
    cache = real_cache(outcome.engine, served.gpu)
    return {
        "schema": SERVE_SCHEMA,
        "command": list(served.command),
        "gpu": served.gpu,
        "torch": served.report.torch,
        "slo": None if report.slo is None else asdict(report.slo),
        "host_time": served.host._asdict(),
        "engine": _engine(outcome.engine),
        "first_start": None if served.first is None else _engine(served.first),
        "cache": None if cache is None else asdict(cache),
        "device": _device(report),
        "traffic": _traffic(outcome.traffic),
        "classes": [_class(each) for each in measures.classes],
        "num_answered": int(outcome.is_answered.sum()),
        "num_rejected": len(outcome.rejected),
        "num_stuck": outcome.num_stuck,
        "rejected": [{"request": n, "why": why} for n, why in list(outcome.rejected.items())[:20]],
        "duration_s": outcome.duration_s,
        **_load(outcome, measures),
        "by_occupancy": _occupancy(measures.by_occupancy),
        "curve": None if report.curve is None else _curve(report.curve),
        "levels": {
            "time_s": _list(outcome.levels.time_s),
            "running": outcome.levels.running.tolist(),
            "waiting": outcome.levels.waiting.tolist(),
            "usage_frac": _list(outcome.levels.usage_frac),
        },
        "step_times": dict(outcome.step_times),
        "attention_left_out": list(outcome.left_out),
        "experts_chosen": outcome.experts_chosen,
        "real_s": dict(outcome.real_s),
    }


def _engine(engine: Engine) -> dict[str, Any]:
    return {**asdict(engine), "ignored": list(engine.ignored)}


def _traffic(traffic: Traffic) -> dict[str, Any]:
    return {
        "source": traffic.source,
        "num_requests": len(traffic),
        "classes": list(traffic.classes),
        "duration_s": traffic.duration_s,
        "num_users": traffic.num_users,
        "num_left_out": traffic.num_left_out,
        "prompt_tokens": int(traffic.prompt_tokens.sum()),
        "output_tokens": int(traffic.output_tokens.sum()),
    }


def _load(outcome: Outcome, measures: Measures) -> dict[str, Any]:
    return {
        "requests_per_s": _number(measures.requests_per_s),
        "output_tokens_per_s": _number(measures.output_tokens_per_s),
        "good_requests_per_s": measures.good_requests_per_s,
        "num_preempted": measures.num_preempted,
        "num_preemptions": measures.num_preemptions,
        "prefix_hit_frac": measures.prefix_hit_frac,
        "queue_peak": measures.queue_peak,
        "stored_bytes": outcome.stored_bytes,
        "loaded_bytes": outcome.loaded_bytes,
        "usage_peak_frac": outcome.usage_peak_frac,
        "usage_mean_frac": outcome.usage_mean_frac,
        "steps": {
            "num_steps": outcome.num_steps,
            "device_s": outcome.device_s,
            "prompt_s": outcome.prompt_s,
            "attention_s": outcome.attention_s,
            "host_s": outcome.host_s,
            "idle_frac": measures.idle_frac,
        },
    }


def _occupancy(rows: tuple[OccupancyRow, ...]) -> list[dict[str, Any]]:
    return [
        {**row._asdict(), "ttft_s": row.ttft_s._asdict(), "tpot_s": row.tpot_s._asdict()}
        for row in rows
    ]


def _curve(curve: Curve) -> dict[str, Any]:
    """The figures by load; those at 1 are the document's own."""
    return {
        "knee_load": curve.knee.load,
        "best_load": None if curve.best is None else curve.best.load,
        "points": [
            {
                "load": point.load,
                "offered_per_s": point.offered_per_s,
                "power": point.power,
                "e2e_mean_s": point.e2e_mean_s,
                "requests_per_s": _number(point.measures.requests_per_s),
                "output_tokens_per_s": _number(point.measures.output_tokens_per_s),
                "good_requests_per_s": point.measures.good_requests_per_s,
                "num_preemptions": point.measures.num_preemptions,
                "queue_peak": point.measures.queue_peak,
                "idle_frac": point.measures.idle_frac,
                "usage_peak_frac": point.usage_peak_frac,
                "usage_mean_frac": point.usage_mean_frac,
                "classes": [_class(each) for each in point.measures.classes],
            }
            for point in curve.points
        ],
        "by_occupancy": _occupancy(curve.by_occupancy),
    }


def _device(report: ServeReport) -> dict[str, Any] | None:
    """The memory of the whole device, as `ullage run` counts it."""
    devices = report.served.report.devices
    if not devices:
        return None
    device = devices[0]
    return {
        "name": device.gpu.slug,
        "total_bytes": device.gpu.total_bytes,
        "peak_used_bytes": device.peak_used_bytes,
        "peak_reserved_bytes": device.totals.peak_reserved_bytes,
        "peak_allocated_bytes": device.totals.peak_allocated_bytes,
    }


def _class(each: ClassMeasures) -> dict[str, Any]:
    times = ("ttft_s", "tpot_s", "e2e_s", "queue_s")
    percentiles: dict[str, Percentiles] = {name: getattr(each, name) for name in times}
    return {
        "name": each.name,
        "num_requests": each.num_requests,
        "num_answered": each.num_answered,
        **{name: values._asdict() for name, values in percentiles.items()},
        "goodput_frac": each.goodput_frac,
    }


def _list(values: npt.NDArray[np.float64]) -> list[float | None]:
    return [_number(value) for value in values.tolist()]


def _number(value: float) -> float | None:
    return value if np.isfinite(value) else None
