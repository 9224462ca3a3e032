"""Which choices a ladder is made of."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from ullage.search.ladder import worth_trying
from ullage.search.solver.problem import Problem

Make = Callable[..., Problem]


def told(problem_choices: list[np.ndarray]) -> set[tuple[int, ...]]:
    """Choices that can be compared."""
    return {tuple(one.tolist()) for one in problem_choices}


def test_of_a_few_blocks_every_choice_is_tried(make_random: Make) -> None:
    found = told(worth_trying([make_random(0, num=5, kinds=3)]))
    assert found == set(itertools.product(range(3), repeat=5))


def test_of_many_blocks_every_first_and_every_spaced_k_is_among_them(make_chain: Make) -> None:
    problem = make_chain([[100, 10]] * 24, [[0.0, 1.0]] * 24)
    found = told(worth_trying([problem]))
    assert (0,) * 24 in found
    for k in range(1, 25):
        assert tuple([1] * k + [0] * (24 - k)) in found
        assert any(sum(one) == k and one[0] == 1 for one in found)
    assert tuple([1, 0] * 12) in found


def test_without_treatments_there_is_one_choice(make_random: Make) -> None:
    problem = make_random(0, num=1, kinds=1)
    assert told(worth_trying([problem])) == {(0,)}
