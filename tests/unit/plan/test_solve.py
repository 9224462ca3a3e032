"""The solver against enumeration, and its bounds."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from ullage.search.solver import certificate
from ullage.search.solver.certificate import certify, is_available
from ullage.search.solver.counts import start_solver
from ullage.search.solver.problem import Failure, Problem, Solution
from ullage.search.solver.solve import relax, solve

Make = Callable[..., Problem]

MIB = 2**20
LIMITS = (0.25, 0.4, 0.55, 0.7, 0.85, 1.0)


def fastest(problem: Problem, limit_bytes: int) -> float | None:
    """The time of the best of all choices; None where none fits."""
    every = itertools.product(range(problem.num_treatments), repeat=problem.num_blocks)
    choices = [np.array(treatments, dtype=np.int64) for treatments in every]
    fitting = [choice for choice in choices if problem.peak_bytes(choice) <= limit_bytes]
    times = [problem.time_s(choice) for choice in fitting]
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
        answer, best_s = solve(problem, limit, gap=0.0), fastest(problem, limit)
        if best_s is None:
            assert answer is Failure.INFEASIBLE
        else:
            assert isinstance(answer, Solution)
            assert answer.time_s == pytest.approx(best_s, abs=1e-9)
            assert answer.peak_bytes == problem.peak_bytes(answer.choice) <= limit


@pytest.mark.parametrize("seed", range(12))
def test_relaxation_alone_gives_a_choice_that_fits_and_a_dual_bound(
    seed: int, make_random: Make
) -> None:
    problem = make_random(seed, num=6, kinds=3)
    for limit in limits(problem):
        solution, best_s = relax(problem, limit), fastest(problem, limit)
        if solution is not None:
            assert best_s is not None
            assert solution.bound_s <= best_s + 1e-9
            assert best_s <= solution.time_s <= 1.5 * best_s + 1e-3
            assert solution.peak_bytes <= limit


def test_of_equal_blocks_the_last_stay_unchanged(make_chain: Make) -> None:
    problem = make_chain([[100, 10]] * 8, [[0.0, 1.0]] * 8, head_mib=10, own_mib=5)
    answer = solve(problem, 600 * MIB)
    assert isinstance(answer, Solution)
    assert answer.choice.tolist() == sorted(answer.choice.tolist(), reverse=True)
    assert answer.choice[0] == 1 and answer.choice[-1] == 0


def test_a_limit_below_every_choice_has_no_solution(make_chain: Make) -> None:
    answer = solve(make_chain([[100, 10]] * 4, [[0.0, 1.0]] * 4), 50 * MIB)
    assert answer is (Failure.INFEASIBLE if is_available() else Failure.NOT_FOUND)


@pytest.mark.skipif(not is_available(), reason="HiGHS is not installed")
def test_running_out_of_time_is_no_proof_that_no_choice_fits(
    make_random: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = make_random(0, num=60, kinds=6)
    assert certify(problem, 50 * MIB, 1e-3, None) is Failure.INFEASIBLE
    monkeypatch.setattr(certificate, "_SECONDS", 0.0)
    assert certify(problem, limits(problem)[2], 1e-3, None) is Failure.NOT_FOUND
    known = relax(problem, limits(problem)[2])
    assert known is not None
    answer = certify(problem, limits(problem)[2], 1e-3, known)
    assert isinstance(answer, Solution)
    assert answer.choice.tolist() == known.choice.tolist()


@pytest.mark.skipif(not is_available(), reason="HiGHS is not installed")
def test_unlike_blocks_by_the_hundred_are_solved_to_a_thousandth(make_random: Make) -> None:
    problem = make_random(1, num=100, kinds=6)
    answer = solve(problem, limits(problem)[2])
    assert isinstance(answer, Solution)
    assert answer.gap <= 1e-3


def test_the_solver_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    print("before")
    start_solver(0.01, 1.0)
    print("after")
    assert capfd.readouterr().out == "before\nafter\n"
