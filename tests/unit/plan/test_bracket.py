"""The fastest rung that fits is found, with few runs."""

from __future__ import annotations

import pytest

from ullage.plan.bracket import Bracket


def search(count: int, guess: int, fitting: set[int]) -> tuple[int | None, int]:
    """What is found, and in how many rounds."""
    bracket, rounds = Bracket(count, guess), 0
    while places := bracket.next(2):
        rounds += 1
        assert not bracket.seen.keys() & set(places), "tried twice"
        for place in places:
            bracket.note(place, fits=place in fitting)
    return bracket.found, rounds


@pytest.mark.parametrize("count", [1, 2, 7, 60])
def test_the_first_that_fits_is_found_wherever_it_is(count: int) -> None:
    for first in range(count + 1):
        for guess in {0, count // 2, count - 1, first}:
            found, rounds = search(count, guess, set(range(first, count)))
            assert found == (first if first < count else None)
            assert rounds <= 12


def test_a_faster_one_that_fits_out_of_order_is_found_too() -> None:
    assert search(20, 10, {8, *range(10, 20)})[0] == 8


def test_a_good_guess_takes_two_rounds() -> None:
    assert search(60, 30, set(range(30, 60)))[1] <= 2
