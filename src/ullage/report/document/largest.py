"""The document of a search for the largest size, schema "ullage.api.largest/1".

json.dumps(largest_document(report), indent=2)
"""

from __future__ import annotations

from typing import Any, Final

from ullage.plan.sizes.largest import Answer, LargestReport
from ullage.report.document.fit import describe_actions
from ullage.report.semantics import semantics_of

LARGEST_SCHEMA: Final = "ullage.api.largest/1"


def largest_document(report: LargestReport) -> dict[str, Any]:
    """The document; sizes of memory are bytes, times are seconds by the clock."""
    best, fastest = report.best, report.fastest
    return {
        "schema": LARGEST_SCHEMA,
        "program": list(report.program),
        "variable": report.variable,
        "multiple_of": report.step,
        "torch": report.torch,
        "gpu": report.gpu.slug,
        "total_bytes": report.gpu.total_bytes,
        "budget_bytes": report.budget_bytes,
        "exit_code": int(report.exit_code),
        "failure": report.failure or None,
        "warnings": list(report.warnings),
        "largest": None if best is None else best.size,
        "plan": None if best is None or best.plan is None else best.plan.document,
        "as_it_is": None if report.as_it_is is None else report.as_it_is.size,
        "fastest_per_unit": None if fastest is None else fastest.name,
        "as_fast_per_unit": [answer.name for answer in report.as_fast],
        "answers": [_answer(answer) for answer in report.answers],
        "left_out": dict(report.left_out),
        "num_runs": report.num_runs,
        "wall_s": round(report.wall_s, 3),
    }


def _answer(answer: Answer) -> dict[str, Any]:
    return {
        "name": answer.name,
        "actions": describe_actions(answer.actions),
        "semantics": semantics_of(answer.actions).value,
        "size": answer.size,
        "beyond": answer.beyond,
        "why_not": answer.why_not or None,
        "step_s": answer.step_s or None,
        "unit_s": answer.unit_s or None,
        "step_interval_s": None if answer.time is None else list(answer.time.step),
        "tokens_per_s": answer.tokens_per_s or None,
        "peak_used_bytes": answer.seen.used_bytes,
        "peak_allocated_bytes": answer.seen.allocated_bytes,
        "num_alloc_retries": answer.seen.num_retries,
        "host_bytes": answer.seen.host_bytes,
    }
