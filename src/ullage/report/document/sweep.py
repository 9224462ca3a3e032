"""The document of a sweep, schema "ullage.sweep/1".

json.dumps(sweep_document(report), indent=2)
"""

from __future__ import annotations

from ullage.explain.compare.fastest import find_fastest
from ullage.explain.compare.sweep import Line, Point, SweepReport
from ullage.report.document.fields import Document
from ullage.report.document.run import run_document

SWEEP_SCHEMA = "ullage.sweep/1"


def sweep_document(report: SweepReport) -> Document:
    """The document of a sweep: each run's own document, and the results over all runs."""
    return {
        "schema": SWEEP_SCHEMA,
        "program": list(report.template),
        "variables": {name: list(values) for name, values in report.variables},
        "gpus": [gpu.slug for gpu in report.gpus],
        "exit_code": int(report.exit_code),
        "wall_s": round(report.wall_s, 3),
        "was_interrupted": report.was_interrupted,
        "fresh_because": report.fresh_because or None,
        "runs": [_point(point) for point in report.points],
        "lines": [_line(line) for line in report.lines],
        "largest": {
            gpu.slug: [dict(values) for values in report.largest(gpu.slug)] for gpu in report.gpus
        },
        "smallest_gpu": report.smallest_gpu,
        "fastest": [
            {
                "gpu": fastest.gpu,
                "values": dict(fastest.point.setting.values),
                "tokens_per_s": fastest.tokens_per_s or None,
                "about_as_fast": [dict(point.setting.values) for point in fastest.alike],
            }
            for fastest in find_fastest(report)
        ],
    }


def _point(point: Point) -> Document:
    return {
        "values": dict(point.setting.values),
        "gpu": point.setting.gpu.slug,
        "run": run_document(point.report),
    }


def _line(line: Line) -> Document:
    return {
        "variable": line.variable,
        "held": dict(line.held),
        "gpu": line.gpu,
        "fixed_bytes": line.fixed_bytes,
        "bytes_per_unit": line.bytes_per_unit,
        "from_value": line.from_value,
        "num_runs": line.num_points,
        "deviation_bytes": line.deviation_bytes,
        "forecast": line.forecast,
        "is_forecast_capped": line.is_forecast_capped,
    }
