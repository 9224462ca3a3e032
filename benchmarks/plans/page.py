"""docs/results/plans.md, from the results that there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from benchmarks.plans.results import Answer, Result
from benchmarks.plans.workloads import WORKLOADS
from benchmarks.results import publish
from ullage.ground.units import format_bytes

SHARES = (0.85, 0.7, 0.55, 0.45)
WELL_USED = 0.95
# Of the step: a mixture that is faster by less is not held against a plan that leaves memory over.
_MUCH_FASTER = 0.01


def problems(result: Result) -> Iterator[str]:
    """What does not hold."""
    found = [one for one in result.answers if one.plan is not None]
    for one in found:
        budget = f"at {format_bytes(one.budget_bytes, 2)}"
        if not one.fits:
            yield f"{result.name} {budget}: {one.plan} does not fit"
        if is_wasteful(one, result):
            told = f"uses {100 * one.used_frac:.1f} %"
            yield f"{result.name} {budget}: {told}, and {100 * one.gap_at_budget:.1f} % are left"
    for one in result.answers:
        if one.contest is not None and one.contest.winner:
            told = f"{one.contest.winner} beats {one.plan or 'nothing'}"
            yield f"{result.name} at {format_bytes(one.budget_bytes, 2)}: {told}"
    for more, less in pairwise(found):
        if more.step_s > less.step_s:
            yield f"{result.name}: slower with {format_bytes(more.budget_bytes, 2)} than with less"
    for more, less in pairwise(result.answers):
        if more.plan is None and less.plan is not None:
            yield f"{result.name}: nothing for {format_bytes(more.budget_bytes, 2)}, but for less"


def is_bound(one: Answer, result: Result) -> bool:
    """Whether memory binds: with more of it another plan would be faster."""
    return one.plan is not None and one.step_s > result.fastest_s


def is_wasteful(one: Answer, result: Result) -> bool:
    """Whether memory is left over with which a step could be much shorter."""
    is_unused = is_bound(one, result) and one.used_frac < WELL_USED
    return is_unused and one.gap_at_budget > _MUCH_FASTER


def write(found: Sequence[Result]) -> None:
    """Writes the page."""
    publish("fit-results", render(found))


def render(found: Sequence[Result]) -> str:
    """The page."""
    return "\n".join(_lines(found)) + "\n"


def _lines(found: Sequence[Result]) -> Iterator[str]:
    shares = ", ".join(f"{100 * one:.0f} %" for one in SHARES)
    ullages, torches, machines, dates = (
        "; ".join(sorted({getattr(one, name) for one in found}))
        for name in ("ullage", "torch", "machine", "date")
    )
    yield f"""# Plans that `ullage fit` finds

Made by `python -m benchmarks.plans --brute` on {dates} with torch {torches} and ullage {ullages},
on {machines}, with other work on the machine, which made searches longer. Each result stays
until its program is searched again, so the results may come from several revisions.

`ullage fit` ran on {len(found)} programs with random weights (benchmarks/plans/programs, plain
loops), at budgets of {shares} of what each needs unchanged. The phantom gives the
memory. Times of steps are predicted and were not measured on a GPU.
"""
    missing = [name for name in WORKLOADS if name not in {one.name for one in found}]
    if missing:
        yield f"Not searched yet: {', '.join(missing)}.\n"
    yield from _checks(found)
    for result in found:
        yield from _table(result)
    yield "## What does not hold\n"
    yield "| beaten |\n|---|"
    yield from (f"| {problem} |" for one in found for problem in problems(one))


def _checks(found: Sequence[Result]) -> Iterator[str]:
    pairs = [(one, result) for result in found for one in result.answers]
    chosen = [(one, result) for one, result in pairs if one.plan is not None]
    bound = [(one, result) for one, result in chosen if is_bound(one, result)]
    well = sum(one.used_frac >= WELL_USED for one, _ in bound)
    wasteful = sum(is_wasteful(one, result) for one, result in bound)
    held = [one.contest for one, _ in pairs if one.contest is not None]
    lost = sum(bool(one.winner) for one in held)
    least = f"{100 * WELL_USED:.0f} % of the budget where memory binds"
    yield "| what is checked | |"
    yield "|---|---|"
    yield f"| searches, and plans found | {len(pairs)}, {len(chosen)} |"
    fitting = sum(one.fits for one, _ in chosen)
    yield f"| the plan, read from its file and run afresh, fits | {fitting} of {len(chosen)} |"
    yield f"| uses at least {least} | {well} of {len(bound)} |"
    jumps = len(bound) - well - wasteful
    yield f"| uses less, but by the bound nothing is 1 % faster | {jumps} of {len(bound)} |"
    yield f"| more memory never gives a slower plan | {_in_order(found)} of {len(found)} programs |"
    yield f"| no plan made by hand is faster and fits | {len(held) - lost} of {len(held)} |"
    rivals, faster, run = (
        sum(getattr(one, name) for one in held) for name in ("num_rivals", "num_faster", "num_run")
    )
    yield f"""
Plans made by hand are: one treatment on k of N blocks, the first ones or evenly spaced, for every
k, alone and combined with the chosen plan's other changes; and each of these changes alone. There
are {rivals} plans, of which {faster} are faster than the chosen one by the model. Of each series
the two that are most likely to win ran, {run} in all.

*gap* is the distance to a bound: by the model, no mixture of these techniques that needs as little
memory is faster by more than this. *at the budget* is the same for mixtures that should fit the
budget.
"""


def _in_order(found: Sequence[Result]) -> int:
    return sum(
        all(more.step_s <= less.step_s for more, less in pairwise(one.answers) if less.plan)
        for one in found
    )


def _table(result: Result) -> Iterator[str]:
    workload = WORKLOADS[result.name]
    yield f"## {result.name}, {workload.about}\n"
    brute = f" {result.num_brute_runs} more in {result.brute_s:.0f} s for the contests."
    yield (
        f"On {workload.gpu}. As it is: {format_bytes(result.as_it_is_bytes, 2)}, "
        f"{1e3 * result.as_it_is_s:.1f} ms; the fastest plan whatever it takes: "
        f"{1e3 * result.fastest_s:.1f} ms. Blocks: {result.blocks}. {result.num_runs} runs for all "
        f"budgets in {result.wall_s:.0f} s." + (brute if result.num_brute_runs else "") + "\n"
    )
    yield "| budget | plan | step | used | of it | gap | at the budget | rivals, faster, run |"
    yield "|---|---|---|---|---|---|---|---|"
    for one in result.answers:
        yield f"| {' | '.join(_cells(one))} |"
    yield ""


def _cells(one: Answer) -> Iterator[str]:
    yield format_bytes(one.budget_bytes, 2)
    if one.plan is None:
        yield from ("none that was tried fits", "", "", "", "", "")
    else:
        yield one.plan
        yield f"{1e3 * one.step_s:.1f} ms"
        yield "failed" if one.used_bytes is None else format_bytes(one.used_bytes, 2)
        yield f"{100 * one.used_frac:.1f} %"
        yield f"{100 * one.gap:.2f} %"
        yield f"{100 * one.gap_at_budget:.2f} %"
    held = one.contest
    yield "" if held is None else f"{held.num_rivals}, {held.num_faster}, {held.num_run}"
