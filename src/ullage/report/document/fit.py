"""The document of a search for a plan, schema "ullage.fit/1".

json.dumps(fit_document(report), indent=2)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ullage.clock.price import Expense
from ullage.plan.findings import Candidate, FitReport
from ullage.plan.sizes.smallest import Smallest
from ullage.report.semantics import semantics_of
from ullage.techniques.technique import Action

FIT_SCHEMA: Final = "ullage.fit/1"


def fit_document(report: FitReport) -> dict[str, Any]:
    """The document of a search; sizes are bytes. Times are seconds per step by the clock; of a plan
    that no run timed ("time" is null), the sum of what its techniques add.
    """
    return {
        "schema": FIT_SCHEMA,
        "verdict": _verdict(report),
        "program": list(report.program),
        "torch": report.torch,
        "gpu": report.gpu.slug,
        "num_gpus": report.num_gpus,
        "total_bytes": report.gpu.total_bytes,
        "budget_bytes": report.budget_bytes,
        "exit_code": int(report.exit_code),
        "failure": report.failure or None,
        "warnings": list(report.warnings),
        "plan": None if report.plan is None else report.plan.document,
        "best": None if report.best is None else _candidate(report, report.best),
        "as_it_is": _candidate(report, report.as_it_is),
        "candidates": [_candidate(report, candidate) for candidate in report.candidates],
        "front": [{"step_s": time, "peak_used_bytes": used} for time, used in report.front],
        "front_of_runs": [_on_front(candidate) for candidate in report.front_of_runs],
        "objective": report.objective.value,
        "gpu_hour_dollars": report.price,
        "bound_s": report.bound_s,
        "gap_frac": report.gap,
        "replayed": None if report.replayed is None else report.replayed.document,
        "ended": report.ended or None,
        "worst_rank": None if report.worst_rank is None else report.worst_rank._asdict(),
        "blocks": [{"path": block.path, "class": block.kind} for block in report.blocks],
        "left_out": dict(report.left_out),
        "smallest_gpu": None if report.smallest is None else report.smallest.gpu,
        "smallest": None if report.smallest is None else _smallest(report.smallest),
        "num_runs": report.num_runs,
        "wall_s": round(report.wall_s, 3),
    }


def _smallest(smallest: Smallest) -> dict[str, Any]:
    return {
        "gpu": smallest.gpu,
        "name": smallest.name,
        "peak_used_bytes": smallest.used_bytes,
        "total_bytes": smallest.total_bytes,
        "too_small": dict(smallest.too_small),
    }


def _verdict(report: FitReport) -> str:
    if report.failure:
        return "failed"
    if report.best is None:
        return "does_not_fit"
    return "fits" if report.best.is_as_it_is else "fits_under_plan"


def describe_actions(actions: Sequence[Action]) -> list[dict[str, Any]]:
    """The actions of a plan in a document."""
    return [
        {
            "technique": action.technique,
            "modules": list(action.modules),
            "settings": dict(action.settings),
        }
        for action in actions
    ]


def _candidate(report: FitReport, candidate: Candidate) -> dict[str, Any]:
    outcome = candidate.seen
    return {
        "name": candidate.name,
        "actions": describe_actions(candidate.actions),
        "semantics": semantics_of(candidate.actions).value,
        "step_s": candidate.step_s,
        "time": _time(candidate),
        "cost": _cost(report.cost(candidate)),
        "peak_allocated_bytes": candidate.peak_bytes,
        "peak_used_bytes": candidate.used_bytes,
        "why_not": candidate.why or None,
        "configuration": candidate.configuration or None,
        "seen": None
        if outcome is None
        else {
            "fits": outcome.fits,
            "peak_used_bytes": outcome.used_bytes,
            "peak_allocated_bytes": outcome.allocated_bytes,
            "num_alloc_retries": outcome.num_retries,
            "host_bytes": outcome.host_bytes,
        },
    }


def _on_front(candidate: Candidate) -> dict[str, Any]:
    return {
        "name": candidate.name,
        "step_s": candidate.step_s,
        "time": _time(candidate),
        "peak_used_bytes": candidate.used_bytes,
    }


def _time(candidate: Candidate) -> dict[str, Any] | None:
    """The clock's interval: lower bound, likely, upper bound; None: no run timed it."""
    time = candidate.time
    if time is None:
        return None
    return {"step_s": list(time.step), "tokens_per_step": time.num_tokens or None}


def _cost(cost: Expense | None) -> dict[str, Any] | None:
    if cost is None:
        return None
    tokens = cost.million_tokens
    return {
        "thousand_steps_dollars": list(cost.thousand_steps),
        "million_tokens_dollars": None if tokens is None else list(tokens),
    }
