"""The fastest treatment of all blocks whose peak stays below a limit.

    solution = solve(problem, limit_bytes)
    solution.choice, solution.time_s, solution.bound_s

A price is put on a byte of each stretch, so that the blocks fall apart and each takes the treatment
that is cheapest at these prices (Lagrangian relaxation, subgradient steps of Polyak's length).
Prices are raised until all fits, and what then fits with room to spare is made faster. The prices
also give a lower bound on the time of any solution. Where the gap between the two is too wide and
HiGHS is installed (the extra "fit"), it closes the gap: certificate.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ullage.plan.solver.counts import count, find_groups
from ullage.plan.solver.problem import FloatArray, Problem
from ullage.trace.model import Int64Array

GAP = 1e-3
_STEPS = 150
_PATIENCE = 10  # steps without a better bound before they are made half as long
_DOUBLINGS, _HALVINGS = 30, 24
# Prices to begin with, in seconds a byte and byte too much; any small number.
_START = 1e-24
# How much of the mean choice is that of before, and after how many steps it is made whole.
_MEMORY, _EVERY = 0.9, 5
_TINY_S = 1e-9


@dataclass(frozen=True, slots=True)
class Solution:
    """A treatment of all blocks below a limit.

    Attributes:
        choice: for each block its treatment.
        time_s: how much longer a step takes than with all blocks as they are.
        bound_s: no solution takes less.
        peak_bytes: the most that is allocated.
    """

    choice: Int64Array
    time_s: float
    bound_s: float
    peak_bytes: int

    @property
    def gap(self) -> float:
        """How much faster another solution may be, of the time of this one."""
        return (self.time_s - self.bound_s) / self.time_s if self.time_s > _TINY_S else 0.0


def solve(problem: Problem, limit_bytes: int, gap: float = GAP) -> Solution | None:
    """The fastest choice with a peak of at most `limit_bytes`; None where there is none.

    Without HiGHS the gap may stay wider than asked, and a choice that just fits may be missed.
    """
    found = relax(problem, limit_bytes)
    if found is not None and found.gap <= gap:
        return found
    from ullage.plan.solver.certificate import certify, is_available

    if not is_available():
        return found
    counted = count(problem, limit_bytes, gap)
    if counted is not None:
        found = _better(problem, limit_bytes, found, counted)
    if found is None or found.gap > gap:
        found = certify(problem, limit_bytes, gap, found)
    if found is None:
        return None
    choice = settle(problem, found.choice)
    return Solution(choice, problem.time_s(choice), found.bound_s, problem.peak_bytes(choice))


def _better(
    problem: Problem, limit_bytes: int, solution: Solution | None, counted: tuple[Int64Array, float]
) -> Solution | None:
    """The better of what was found and what was counted, with the higher bound."""
    choice, bound_s = counted
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
    """A good choice and a bound by prices alone."""
    best, bound_s = _descend(problem, limit_bytes, steps)
    if best is None:
        return None
    best, best_s = settle(problem, best), problem.time_s(best)
    return Solution(best, best_s, max(min(bound_s, best_s), 0.0), problem.peak_bytes(best))


def least_s(problem: Problem, limit_bytes: int) -> float:
    """No choice with a peak of at most `limit_bytes` takes less; infinite: for some stretch all
    blocks at their leanest are too much.
    """
    lowest = problem.held @ problem.kept_bytes.min(axis=1) + problem.rest_bytes.min(axis=1)
    if lowest.max(initial=0) > limit_bytes:
        return float("inf")
    _, bound_s = _descend(problem, limit_bytes, _STEPS)
    return max(bound_s, 0.0)


def _descend(problem: Problem, limit_bytes: int, steps: int) -> tuple[Int64Array | None, float]:
    """The best choice met on the way to the best prices, and the bound of these."""
    prices = np.zeros(len(problem.own))
    shares = np.zeros(problem.kept_bytes.shape)
    best: Int64Array | None = None
    best_s, bound_s, length, idle = np.inf, -np.inf, 1.0, 0
    for step in range(steps):
        costs = _costs(problem, prices)
        choice = costs.argmin(axis=1)
        value = float(costs.min(axis=1).sum()) + _fixed(problem, prices, limit_bytes)
        idle = 0 if value > bound_s else idle + 1
        bound_s = max(bound_s, value)
        if idle >= _PATIENCE:
            length, idle = length / 2, 0
        over = problem.levels(choice) - float(limit_bytes)
        shares *= _MEMORY
        shares[np.arange(len(choice)), choice] += 1.0 - _MEMORY
        if step % _EVERY == 0:
            tried = _fit(problem, prices + np.maximum(over, 0.0) * _START, limit_bytes)
            rounded = improve(problem, _round(problem, shares), limit_bytes)
            for made in (tried, rounded):
                if made is None or problem.peak_bytes(made) > limit_bytes:
                    continue
                if problem.time_s(made) < best_s:
                    best, best_s = made, problem.time_s(made)
        slope = np.where((prices > 0) | (over > 0), over, 0.0)
        steepness = float(slope @ slope)
        if best_s - bound_s <= GAP / 4 * best_s + _TINY_S or steepness == 0:
            break
        target = best_s if best is not None else 2 * bound_s + float(problem.extra_s.max())
        prices = np.maximum(0.0, prices + length * slope * (target - value) / steepness)
    return best, bound_s


def settle(problem: Problem, choice: Int64Array) -> Int64Array:
    """The same treatments with those that keep least on the earliest of blocks that take as long:
    these are held longest.
    """
    settled = choice.copy()
    for group in find_groups(problem):
        kept = problem.kept_bytes[group[0]]
        settled[group] = sorted(choice[group].tolist(), key=lambda one: int(kept[one]))
    is_no_worse = problem.peak_bytes(settled) <= problem.peak_bytes(choice)
    return settled if is_no_worse else choice


def _round(problem: Problem, shares: FloatArray) -> Int64Array:
    """A choice from shares of each treatment: block by block the fastest with which all blocks so
    far keep no more than their shares would.
    """
    owed = np.cumsum((shares * problem.kept_bytes).sum(axis=1) / shares.sum(axis=1))
    choice = np.zeros(problem.num_blocks, dtype=np.int64)
    kept = 0.0
    for block, limit in enumerate(owed):
        fits = kept + problem.kept_bytes[block] <= limit * (1 + 1e-12)
        fits |= problem.kept_bytes[block] == problem.kept_bytes[block].min()
        choice[block] = np.where(fits, problem.extra_s[block], np.inf).argmin()
        kept += float(problem.kept_bytes[block, choice[block]])
    return choice


def _costs(problem: Problem, prices: FloatArray) -> FloatArray:
    """(N, K) what each treatment costs at these prices."""
    held = prices @ problem.held
    costs = problem.extra_s + held[:, None] * problem.kept_bytes
    has_own = problem.own >= 0
    np.add.at(costs, problem.own[has_own], prices[has_own, None] * problem.rest_bytes[has_own])
    return costs


def _fixed(problem: Problem, prices: FloatArray, limit_bytes: int) -> float:
    """What hangs on the prices alone."""
    free = problem.own < 0
    return float(prices[free] @ problem.rest_bytes[free, 0] - prices.sum() * limit_bytes)


def _fit(problem: Problem, prices: FloatArray, limit_bytes: int) -> Int64Array | None:
    """A choice that fits: that at the lowest multiple of the prices, made faster; None: none does.

    A choice between that at a multiple and that just below it takes blocks from both, the earlier
    ones, which are held longest, from the cheaper in memory.
    """
    low, high = 0.0, 1.0
    dear = _cheapest(problem, prices)
    for _ in range(_DOUBLINGS):
        if problem.peak_bytes(dear) <= limit_bytes:
            break
        low, high = high, high * 4
        dear = _cheapest(problem, prices * high)
    else:
        return None
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        choice = _cheapest(problem, prices * middle)
        if problem.peak_bytes(choice) <= limit_bytes:
            high, dear = middle, choice
        else:
            low = middle
    return improve(problem, dear, limit_bytes)


def _cheapest(problem: Problem, prices: FloatArray) -> Int64Array:
    return np.asarray(_costs(problem, prices).argmin(axis=1), dtype=np.int64)


def improve(problem: Problem, choice: Int64Array, limit_bytes: int) -> Int64Array:
    """A choice that fits with blocks changed to faster treatments as long as it fits, the later of
    equal ones first.
    """
    choice = choice.copy()
    rows = np.arange(problem.num_blocks)
    stretches = np.flatnonzero(problem.own >= 0)
    own = problem.own[stretches]
    while True:
        room = limit_bytes - problem.levels(choice)
        in_held = np.where(problem.held > 0, room[:, None], np.inf).min(axis=0, initial=np.inf)
        more = problem.kept_bytes - problem.kept_bytes[rows, choice][:, None]
        fits = more <= in_held[:, None]
        rest = problem.rest_bytes[stretches]
        grown = rest - problem.rest_bytes[stretches, choice[own]][:, None]
        np.logical_and.at(fits, own, grown <= room[stretches, None])
        won = np.where(fits, problem.extra_s[rows, choice][:, None] - problem.extra_s, 0.0)
        last = len(won) - 1 - int(won.max(axis=1)[::-1].argmax())
        if won[last].max() <= _TINY_S:
            return choice
        choice[last] = int(won[last].argmax())
