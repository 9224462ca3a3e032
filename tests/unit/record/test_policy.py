"""Numbers that stand for unknown values, and what comparisons make of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import pytest
from tests.rows import each

from ullage.players.inside.values.policy import deciding
from ullage.players.inside.values.uniform import COMPARISONS, RULES, Call

BOUNDS = (-3.0, -0.5, 0.0, 0.2, 0.51, 0.88, 0.999, 1.0, 7.0, 1e6)


@each(("name", "bound", "holds"), product(COMPARISONS, BOUNDS, [True, False]))
def test_a_decided_comparison_is_as_it_was_decided(name: str, bound: float, *, holds: bool) -> None:
    number = deciding(name, bound, 0.51, holds=holds)
    assert COMPARISONS[name](number, bound) is holds
    assert math.isfinite(number)


@each(("name", "bound"), product(COMPARISONS, [-1.0, 0.2, 3.0]))
def test_a_number_that_agrees_already_stays(name: str, bound: float) -> None:
    holds = COMPARISONS[name](0.51, bound)
    assert deciding(name, bound, 0.51, holds=holds) == 0.51


def test_a_number_between_zero_and_one_remains_a_probability() -> None:
    for bound in (0.0, 0.5, 0.88, 0.99):
        assert 0 <= deciding("gt", bound, 0.3, holds=True) <= 1
        assert 0 <= deciding("lt", bound + 0.005, 0.999, holds=True) <= 1


MEANINGS: dict[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "rsub": lambda a, b: b - a,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "pow": lambda a, b: a**b,
    "maximum": max,
    "minimum": min,
    "clamp_min": max,
    "clamp_max": min,
}


@pytest.mark.parametrize("name", MEANINGS)
def test_arithmetic_of_uniform_tensors_is_that_of_their_numbers(name: str) -> None:
    for a, b in ((0.51, 2.0), (3.0, 0.25)):
        assert RULES[name](Call((a, b), (None, None), {}, 1.0)) == MEANINGS[name](a, b)


def test_a_sum_counts_what_it_folds() -> None:
    assert RULES["sum"](Call((0.5,), (None,), {}, 64.0)) == 32.0
    assert RULES["mean"](Call((0.5,), (None,), {}, 64.0)) == 0.5
    assert RULES["count_nonzero"](Call((0.5,), (None,), {}, 64.0)) == 64.0
