"""The solver against enumeration, and its bounds."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from ullage.plan.solver.certificate import is_available
from ullage.plan.solver.problem import Problem
from ullage.plan.solver.solve import relax, solve

Make = Callable[..., Problem]

MIB = 2**20
LIMITS = (0.25, 0.4, 0.55, 0.7, 0.85, 1.0)


def fastest(problem: Problem, limit_bytes: int) -> float | None:
    """The time of the best of all choices; None where none fits."""
    every = itertools.product(range(problem.num_treatments), repeat=problem.num_blocks)
    choices = [np.array(one, dtype=np.int64) for one in every]
    times = [problem.time_s(one) for one in choices if problem.peak_bytes(one) <= limit_bytes]
    return min(times, default=None)


def limits(problem: Problem) -> list[int]:
    """Some, from too little to enough for all as it is."""
    peak = problem.peak_bytes(np.zeros(problem.num_blocks, dtype=np.int64))
    return [int(share * peak) for share in LIMITS]


@pytest.mark.skipif(not is_available(), reason="HiGHS is not installed")
@pytest.mark.parametrize("seed", range(12))
def test_small_problems_are_solved_as_enumeration_does(seed: int, make_random: Make) -> None:
    problem = make_random(seed, num=6, kinds=3)
    for limit in limits(problem):
        found, best = solve(problem, limit, gap=0.0), fastest(problem, limit)
        assert (found is None) == (best is None)
        if found is not None and best is not None:
            assert found.time_s == pytest.approx(best, abs=1e-9)
            assert found.peak_bytes == problem.peak_bytes(found.choice) <= limit


@pytest.mark.parametrize("seed", range(12))
def test_prices_alone_give_a_choice_that_fits_and_a_bound_that_holds(
    seed: int, make_random: Make
) -> None:
    problem = make_random(seed, num=6, kinds=3)
    for limit in limits(problem):
        found, best = relax(problem, limit), fastest(problem, limit)
        if found is not None:
            assert best is not None
            assert found.bound_s <= best + 1e-9
            assert best <= found.time_s <= 1.5 * best + 1e-3
            assert found.peak_bytes <= limit


def test_of_equal_blocks_the_last_are_left_alone(make_chain: Make) -> None:
    problem = make_chain([[100, 10]] * 8, [[0.0, 1.0]] * 8, head_mib=10, own_mib=5)
    found = solve(problem, 600 * MIB)
    assert found is not None
    assert found.choice.tolist() == sorted(found.choice.tolist(), reverse=True)
    assert found.choice[0] == 1 and found.choice[-1] == 0


def test_a_limit_below_every_choice_has_no_solution(make_chain: Make) -> None:
    assert solve(make_chain([[100, 10]] * 4, [[0.0, 1.0]] * 4), 50 * MIB) is None


@pytest.mark.skipif(not is_available(), reason="HiGHS is not installed")
def test_unlike_blocks_by_the_hundred_are_solved_to_a_thousandth(make_random: Make) -> None:
    problem = make_random(1, num=100, kinds=6)
    found = solve(problem, limits(problem)[2])
    assert found is not None
    assert found.gap <= 1e-3
