"""The outcomes of runs: fit or not, and why a plan was not chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ullage.clock.compare import Order, compare
from ullage.explain.run import RunReport
from ullage.explain.verdict import Verdict
from ullage.ground.units import format_bytes
from ullage.search.findings import Candidate, Seen, key_of
from ullage.search.objective import Objective
from ullage.search.proposals import Rung


def as_seen(candidate: Candidate, budget_bytes: int) -> Candidate:
    """A plan whose run with unlimited memory stayed within the budget, as a plan that fits."""
    if candidate.seen is not None or candidate.used_bytes > budget_bytes:
        return candidate
    return replace(candidate, seen=Seen(True, "", candidate.used_bytes, candidate.peak_bytes, 0, 0))  # noqa: FBT003


def judge(report: RunReport, budget_bytes: int) -> Seen:
    """Judges whether a run fits a budget."""
    used = max((device.peak_used_bytes for device in report.devices), default=0)
    allocated = max((device.totals.peak_allocated_bytes for device in report.devices), default=0)
    fits, reason = report.verdict is Verdict.FITS, report.reason
    if fits and used > budget_bytes:
        fits, reason = False, too_much(used, budget_bytes)
    return Seen(
        fits,
        "" if fits else reason,
        used,
        allocated,
        max((device.totals.num_alloc_retries for device in report.devices), default=0),
        report.host.pinned_peak_bytes,
        report.verdict is Verdict.FAILED,
    )


def is_smooth(observation: Seen, most_retries: int | None) -> bool:
    """True if the allocator had at most this many retries; None: any number."""
    return most_retries is None or observation.num_retries <= most_retries


def too_much(used_bytes: int, budget_bytes: int) -> str:
    """By how much a plan is above the budget."""
    return f"{format_bytes(used_bytes - budget_bytes)} too much"


def with_reason(candidate: Candidate, best: Candidate | None, budget_bytes: int) -> Candidate:
    """A candidate with the reason why it was not chosen."""
    if best is not None and key_of(candidate.actions) == key_of(best.actions):
        return candidate
    if candidate.seen is not None and not candidate.seen.fits:
        return replace(candidate, why=candidate.seen.reason)
    if candidate.used_bytes > budget_bytes:
        return replace(candidate, why=too_much(candidate.used_bytes, budget_bytes))
    slower = "" if best is None else say_slower(candidate, best)
    if slower and not _num_retries(candidate):
        return replace(candidate, why=slower)
    if candidate.seen is None:
        return replace(candidate, why="not tried")
    if candidate.seen.num_retries > _num_retries(best):
        return replace(candidate, why="fits only as the allocator gives back its cache")
    return replace(candidate, why=slower or "takes more memory")


def say_more(step_s: float, best_s: float) -> str:
    """By how much a step takes longer than the best: "7.3 % slower"; empty: no longer."""
    # The best has 0 seconds where it was not timed.
    return f"{100 * (step_s / best_s - 1):.1f} % slower" if step_s > best_s > 0 else ""


def say_slower(candidate: Candidate, best: Candidate) -> str:
    """The same of two plans, or "about as fast" where the order of two is not sure."""
    if candidate.time is None or best.time is None:
        return say_more(candidate.step_s, best.step_s)
    comparison = compare(candidate.time.step, best.time.step)
    if comparison.order is Order.ALIKE:
        return "about as fast"
    return f"{100 * comparison.likely:.1f} % slower" if comparison.order is Order.SLOWER else ""


def is_surely_slower(candidate: Candidate, other: Candidate, objective: Objective) -> bool:
    """True if a plan is slower than another, or dearer, whatever kernels and launches cost."""
    times = candidate.time, other.time
    if times[0] is None or times[1] is None or times[0].num_tokens != times[1].num_tokens:
        return rank_of(candidate, objective) > rank_of(other, objective)
    return compare(times[0].step, times[1].step).order is Order.SLOWER


def _num_retries(candidate: Candidate | None) -> int:
    return 0 if candidate is None or candidate.seen is None else candidate.seen.num_retries


def fastest_fitting(
    candidates: Sequence[Candidate], objective: Objective = Objective.TIME
) -> Candidate | None:
    """The fastest candidate whose run fits, or the cheapest; None: there is none."""
    fitting = [
        candidate for candidate in candidates if candidate.seen is not None and candidate.seen.fits
    ]
    return min(fitting, key=lambda candidate: rank_of(candidate, objective), default=None)


def rank_of(candidate: Candidate, objective: Objective) -> float:
    """The order of plans that fit: the least is the best."""
    return candidate.token_s if objective is Objective.COST else candidate.step_s


def best_first(plans: Mapping[Rung, Candidate], objective: Objective) -> list[Rung]:
    """The rungs of plans that fit, best first; those of which each may be the best come first, in
    the order of the model.
    """
    best = fastest_fitting([*plans.values()], objective)

    def rank(rung: Rung) -> tuple[float, Rung]:
        plan = plans[rung]
        is_worse = best is not None and is_surely_slower(plan, best, objective)
        return rank_of(plan, objective) if is_worse else 0.0, rung

    return sorted(plans, key=rank)
