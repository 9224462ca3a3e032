"""Whether a run fits a budget, and why a plan is not the one chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ullage.explain.run import RunReport
from ullage.explain.verdict import Verdict
from ullage.plan.findings import Candidate, Seen, key_of
from ullage.units import format_bytes


def as_seen(one: Candidate, budget_bytes: int) -> Candidate:
    """A plan that ran where memory is without end, as seen where that is within the budget."""
    if one.seen is not None or one.used_bytes > budget_bytes:
        return one
    return replace(one, seen=Seen(True, "", one.used_bytes, one.peak_bytes, 0, 0))  # noqa: FBT003


def judge(report: RunReport, budget_bytes: int) -> Seen:
    """Whether a run fits a budget."""
    used = max((one.peak_used_bytes for one in report.devices), default=0)
    allocated = max((one.totals.peak_allocated_bytes for one in report.devices), default=0)
    fits, reason = report.verdict is Verdict.FITS, report.reason
    if fits and used > budget_bytes:
        fits, reason = False, _too_much(used, budget_bytes)
    return Seen(
        fits,
        "" if fits else reason,
        used,
        allocated,
        max((one.totals.num_alloc_retries for one in report.devices), default=0),
        report.host.pinned_peak_bytes,
        report.verdict is Verdict.FAILED,
    )


def is_smooth(seen: Seen, most_retries: int | None) -> bool:
    """Whether the allocator gave back its cache no more often than that; None: however often."""
    return most_retries is None or seen.num_retries <= most_retries


def _too_much(used_bytes: int, budget_bytes: int) -> str:
    return f"{format_bytes(used_bytes - budget_bytes)} too much"


def with_reason(one: Candidate, best: Candidate | None, budget_bytes: int) -> Candidate:
    """A candidate with why it is not the one chosen."""
    if best is not None and key_of(one.actions) == key_of(best.actions):
        return one
    if one.seen is not None and not one.seen.fits:
        return replace(one, why=one.seen.reason)
    if one.used_bytes > budget_bytes:
        return replace(one, why=_too_much(one.used_bytes, budget_bytes))
    if best is not None and one.step_s > best.step_s:
        return replace(one, why=f"{100 * (one.step_s / best.step_s - 1):.1f} % slower")
    if one.seen is None:
        return replace(one, why="not tried")
    if one.seen.num_retries > _num_retries(best):
        return replace(one, why="fits only as the allocator gives back its cache")
    return replace(one, why="takes more memory")


def _num_retries(one: Candidate | None) -> int:
    return 0 if one is None or one.seen is None else one.seen.num_retries


def fastest_fitting(candidates: Sequence[Candidate]) -> Candidate | None:
    """The fastest of those that were seen to fit; None: none was."""
    fitting = [one for one in candidates if one.seen is not None and one.seen.fits]
    return min(fitting, key=lambda one: one.step_s, default=None)
