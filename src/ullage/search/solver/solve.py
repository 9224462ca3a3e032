"""The fastest choice of treatments whose peak stays below a limit.

    solution = solve(problem, limit_bytes)
    if isinstance(solution, Solution):
        solution.choice, solution.time_s, solution.bound_s

Lagrangian relaxation: the limit of each stretch gets a multiplier, a price in seconds per byte, so
that each block takes the treatment that is cheapest by itself. Subgradient steps of Polyak's length
raise the dual bound; rounding and a greedy search give choices that fit, and so the primal bound.
Where the gap between the bounds is too wide and HiGHS is installed (the extra "fit"), it closes the
gap: certificate.py.

Source: Held, Wolfe and Crowder, 1974, doi:10.1007/BF01580223; Polyak, 1969.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ullage.log.model import Int64Array
from ullage.search.solver.certificate import certify, is_available
from ullage.search.solver.counts import find_groups, solve_counts
from ullage.search.solver.problem import TINY_S, Failure, FloatArray, Problem, Solution

GAP = 1e-3
_STEPS = 150
_PATIENCE = 10  # steps without a better dual bound before the step length is halved
_DOUBLINGS, _HALVINGS = 30, 24
# First multipliers, in seconds per byte and per excess byte; any small number.
_START = 1e-24
# The weight of earlier choices in the mean choice, and the number of steps between two roundings.
_MOMENTUM, _ROUND_EVERY = 0.9, 5


def solve(problem: Problem, limit_bytes: int, gap: float = GAP) -> Solution | Failure:
    """The fastest choice with a peak of at most `limit_bytes`, or why there is none.

    Without HiGHS the gap may stay wider than `gap`, and a choice that just fits may be missed.
    """
    # 1. Lagrangian relaxation.
    solution = relax(problem, limit_bytes)
    if solution is not None and solution.gap <= gap:
        return solution
    if not is_available():
        return solution or Failure.NOT_FOUND
    # 2. The small program over groups of equal blocks.
    counts = solve_counts(problem, limit_bytes, gap)
    if counts is not None:
        solution = _better(problem, limit_bytes, solution, counts)
    # 3. The whole mixed-integer program.
    if solution is None or solution.gap > gap:
        answer = certify(problem, limit_bytes, gap, solution)
        if isinstance(answer, Failure):
            return answer
        solution = answer
    choice = settle(problem, solution.choice)
    return Solution(choice, problem.time_s(choice), solution.bound_s, problem.peak_bytes(choice))


def _better(
    problem: Problem, limit_bytes: int, solution: Solution | None, counts: tuple[Int64Array, float]
) -> Solution | None:
    """The faster of a solution and the choice by counts, with the higher of the dual bounds."""
    choice, bound_s = counts
    fits = problem.peak_bytes(choice) <= limit_bytes
    if fits and (solution is None or problem.time_s(choice) < solution.time_s):
        before_s = 0.0 if solution is None else solution.bound_s
        time_s = problem.time_s(choice)
        bound_s = min(max(bound_s, before_s), time_s)
        return Solution(choice, time_s, bound_s, problem.peak_bytes(choice))
    if solution is None:
        return None
    return replace(solution, bound_s=min(max(bound_s, solution.bound_s), solution.time_s))


def relax(problem: Problem, limit_bytes: int, steps: int = _STEPS) -> Solution | None:
    """A good choice and its dual bound by Lagrangian relaxation alone; None: none was found."""
    best, bound_s = _descend(problem, limit_bytes, steps)
    if best is None:
        return None
    best, best_s = settle(problem, best), problem.time_s(best)
    return Solution(best, best_s, max(min(bound_s, best_s), 0.0), problem.peak_bytes(best))


def lower_bound_s(problem: Problem, limit_bytes: int) -> float:
    """The dual bound: no choice with a peak of at most `limit_bytes` takes less.

    It is infinite where some stretch exceeds the limit with every block at its leanest.
    """
    lowest = problem.liveness @ problem.kept_bytes.min(axis=1) + problem.rest_bytes.min(axis=1)
    if lowest.max(initial=0) > limit_bytes:
        return float("inf")
    _, bound_s = _descend(problem, limit_bytes, _STEPS)
    return max(bound_s, 0.0)


def _descend(problem: Problem, limit_bytes: int, steps: int) -> tuple[Int64Array | None, float]:
    """The best choice on the way of the subgradient method, and the best dual bound."""
    multipliers = np.zeros(len(problem.own))
    shares = np.zeros(problem.kept_bytes.shape)
    best: Int64Array | None = None
    primal_s, dual_s, length, num_stalled = np.inf, -np.inf, 1.0, 0
    for step in range(steps):
        # Minimise the Lagrangian: block by block the treatment of least reduced cost.
        costs = _reduced_costs(problem, multipliers)
        choice = costs.argmin(axis=1)
        value_s = float(costs.min(axis=1).sum()) + _constant_s(problem, multipliers, limit_bytes)
        # Its value is a dual bound. Where the best one stalls, steps become half as long.
        num_stalled = 0 if value_s > dual_s else num_stalled + 1
        dual_s = max(dual_s, value_s)
        if num_stalled >= _PATIENCE:
            length, num_stalled = length / 2, 0
        # The negative slack of each stretch is a subgradient.
        excess = problem.levels(choice) - float(limit_bytes)
        # The mean choice comes close to an optimum in fractions, which rounding starts from.
        shares *= _MOMENTUM
        shares[np.arange(len(choice)), choice] += 1.0 - _MOMENTUM
        if step % _ROUND_EVERY == 0:
            raised = multipliers + np.maximum(excess, 0.0) * _START
            best, primal_s = _find_primal(problem, raised, shares, limit_bytes, (best, primal_s))
        # A multiplier of 0 falls no lower: its stretch has slack.
        subgradient = np.where((multipliers > 0) | (excess > 0), excess, 0.0)
        squared_norm = float(subgradient @ subgradient)
        if primal_s - dual_s <= GAP / 4 * primal_s + TINY_S or squared_norm == 0:
            break
        # Polyak's step length: towards the primal bound, or a guess where there is none.
        target_s = primal_s if best is not None else 2 * dual_s + float(problem.extra_s.max())
        factor = length * subgradient * (target_s - value_s) / squared_norm
        multipliers = np.maximum(0.0, multipliers + factor)
    return best, dual_s


def _find_primal(
    problem: Problem,
    multipliers: FloatArray,
    shares: FloatArray,
    limit_bytes: int,
    best: tuple[Int64Array | None, float],
) -> tuple[Int64Array | None, float]:
    """The best choice that fits and the primal bound: of `best` and of two heuristics."""
    choice, primal_s = best
    scaled = _scale_to_fit(problem, multipliers, limit_bytes)
    rounded = improve(problem, _round(problem, shares), limit_bytes)
    for candidate in (scaled, rounded):
        if candidate is None or problem.peak_bytes(candidate) > limit_bytes:
            continue
        if problem.time_s(candidate) < primal_s:
            choice, primal_s = candidate, problem.time_s(candidate)
    return choice, primal_s


def settle(problem: Problem, choice: Int64Array) -> Int64Array:
    """The same treatments in another order within each group of blocks that take equally long: the
    earliest blocks, which are live longest, keep least.
    """
    ordered = choice.copy()
    for group in find_groups(problem):
        kept_bytes = problem.kept_bytes[group[0]].tolist()
        ordered[group] = sorted(choice[group].tolist(), key=kept_bytes.__getitem__)
    is_no_worse = problem.peak_bytes(ordered) <= problem.peak_bytes(choice)
    return ordered if is_no_worse else choice


def _round(problem: Problem, shares: FloatArray) -> Int64Array:
    """Rounds the shares of the treatments to a choice.

    Each block in turn gets the fastest treatment with which the blocks up to it keep no more than
    their shares do.
    """
    limits = np.cumsum((shares * problem.kept_bytes).sum(axis=1) / shares.sum(axis=1))
    choice = np.zeros(problem.num_blocks, dtype=np.int64)
    total = 0.0
    for block, limit in enumerate(limits):
        fits = total + problem.kept_bytes[block] <= limit * (1 + 1e-12)
        fits |= problem.kept_bytes[block] == problem.kept_bytes[block].min()
        choice[block] = np.where(fits, problem.extra_s[block], np.inf).argmin()
        total += float(problem.kept_bytes[block, choice[block]])
    return choice


def _reduced_costs(problem: Problem, multipliers: FloatArray) -> FloatArray:
    """(N, K) the time of each treatment plus the price of its memory."""
    prices = multipliers @ problem.liveness
    costs = problem.extra_s + prices[:, None] * problem.kept_bytes
    has_own = problem.own >= 0
    rest = multipliers[has_own, None] * problem.rest_bytes[has_own]
    np.add.at(costs, problem.own[has_own], rest)
    return costs


def _constant_s(problem: Problem, multipliers: FloatArray, limit_bytes: int) -> float:
    is_free = problem.own < 0
    rest = multipliers[is_free] @ problem.rest_bytes[is_free, 0]
    return float(rest - multipliers.sum() * limit_bytes)


def _scale_to_fit(problem: Problem, multipliers: FloatArray, limit_bytes: int) -> Int64Array | None:
    """The choice at the lowest multiple of the multipliers at which it fits, improved; None: at
    none does it fit.
    """
    # Raise the factor until the choice fits.
    low, high = 0.0, 1.0
    feasible = _cheapest(problem, multipliers)
    for _ in range(_DOUBLINGS):
        if problem.peak_bytes(feasible) <= limit_bytes:
            break
        low, high = high, high * 4
        feasible = _cheapest(problem, multipliers * high)
    else:
        return None
    # Bisect between the factors where it does not fit and where it does.
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        choice = _cheapest(problem, multipliers * middle)
        if problem.peak_bytes(choice) <= limit_bytes:
            high, feasible = middle, choice
        else:
            low = middle
    # What still has slack is made faster.
    return improve(problem, feasible, limit_bytes)


def _cheapest(problem: Problem, multipliers: FloatArray) -> Int64Array:
    """The choice that minimises the Lagrangian."""
    return np.asarray(_reduced_costs(problem, multipliers).argmin(axis=1), dtype=np.int64)


def improve(problem: Problem, choice: Int64Array, limit_bytes: int) -> Int64Array:
    """Greedy search: changes the block that saves most time, as long as the choice fits. Of equal
    blocks, the later is changed first.
    """
    choice = choice.copy()
    rows = np.arange(problem.num_blocks)
    stretches = np.flatnonzero(problem.own >= 0)
    own = problem.own[stretches]
    while True:
        # A block may keep as much more as the least slack of the stretches in which it is live.
        slack = limit_bytes - problem.levels(choice)
        is_live = problem.liveness > 0
        live_slack = np.where(is_live, slack[:, None], np.inf).min(axis=0, initial=np.inf)
        more = problem.kept_bytes - problem.kept_bytes[rows, choice][:, None]
        fits = more <= live_slack[:, None]
        # Its own stretches may grow by no more than their slack.
        rest = problem.rest_bytes[stretches]
        growth = rest - problem.rest_bytes[stretches, choice[own]][:, None]
        np.logical_and.at(fits, own, growth <= slack[stretches, None])
        # Make the change that saves most, until none saves any.
        saved_s = np.where(fits, problem.extra_s[rows, choice][:, None] - problem.extra_s, 0.0)
        last = len(saved_s) - 1 - int(saved_s.max(axis=1)[::-1].argmax())
        if saved_s[last].max() <= TINY_S:
            return choice
        choice[last] = int(saved_s[last].argmax())
