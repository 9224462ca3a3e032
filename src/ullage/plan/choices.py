"""The choices of treatments that are worth a run, for any budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ullage.plan.solver.problem import Problem
from ullage.plan.solver.solve import relax
from ullage.trace.model import Int64Array

# How many limits are tried between the highest and the lowest peak.
_NUM_LIMITS = 64
_STEPS = 40
# Up to this many choices are all tried.
_FEW = 4096


def worth_trying(problems: Sequence[Problem]) -> list[Int64Array]:
    """Each choice once: no treatment, each treatment on k blocks, and the fastest choice below each
    of many limits in any of the problems.
    """
    choices = {tuple(choice.tolist()) for problem in problems for choice in _of(problem)}
    return [np.array(choice, dtype=np.int64) for choice in sorted(choices)]


def uniform(num_blocks: int, treatment: int) -> Iterator[Int64Array]:
    """For each k, one treatment on the first k blocks, and on k evenly spaced ones."""
    for k in range(1, num_blocks + 1):
        first = np.zeros(num_blocks, dtype=np.int64)
        first[:k] = treatment
        yield first
        spaced = np.zeros(num_blocks, dtype=np.int64)
        spaced[(np.arange(k) * num_blocks) // k] = treatment
        yield spaced


def _of(problem: Problem) -> Iterator[Int64Array]:
    num, kinds = problem.num_blocks, problem.num_treatments
    yield np.zeros(num, dtype=np.int64)
    for treatment in range(1, kinds):
        yield from uniform(num, treatment)
    if kinds > 1 and num > 0:
        yield from _every(num, kinds) if kinds**num <= _FEW else _below_limits(problem)


def _every(num: int, kinds: int) -> Iterator[Int64Array]:
    for number in range(kinds**num):
        yield np.array([number // kinds**place % kinds for place in range(num)], dtype=np.int64)


def _below_limits(problem: Problem) -> Iterator[Int64Array]:
    """The fastest choices below limits that fall from the peak of the unchanged program."""
    peak = problem.peak_bytes(np.zeros(problem.num_blocks, dtype=np.int64))
    lowest = min(
        problem.peak_bytes(np.full(problem.num_blocks, treatment, dtype=np.int64))
        for treatment in range(problem.num_treatments)
    )
    step = max(1, (peak - lowest) // _NUM_LIMITS)
    limit = peak - step
    while limit > 0:
        solution = relax(problem, limit, _STEPS)
        if solution is None:
            return
        yield solution.choice
        limit = min(limit, solution.peak_bytes) - step
