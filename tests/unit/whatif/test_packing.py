"""Packings: nothing overlaps, nothing beats the lower bound, and small cases meet brute force."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage.explain.whatif.packing import (
    Spans,
    find_packing,
    lower_bound,
    place_in_order,
    place_largest_first,
)

Rows = list[tuple[int, int, int]]  # bytes, birth, death


def spans_of(rows: Rows) -> Spans:
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return Spans(columns[:, 0], columns[:, 1], columns[:, 2])


def rows_of(max_size: int) -> st.SearchStrategy[Rows]:
    row = st.tuples(st.integers(1, 9), st.integers(-1, 12), st.integers(1, 8))
    return st.lists(row.map(lambda r: (r[0] * 512, r[1], r[1] + r[2])), max_size=max_size)


def top_of(rows: Rows, begins: list[int]) -> int:
    return max((begin + row[0] for begin, row in zip(begins, rows, strict=True)), default=0)


def overlaps(rows: Rows, begins: list[int]) -> bool:
    """Whether two blocks that are live at once share a byte."""
    for one in range(len(rows)):
        for other in range(one):
            (a, a_birth, a_death), (b, b_birth, b_death) = rows[one], rows[other]
            at_once = a_birth < b_death and b_birth < a_death
            if at_once and begins[one] < begins[other] + b and begins[other] < begins[one] + a:
                return True
    return False


def best_of_all(rows: Rows) -> int:
    """The best packing: some order of placing each block as low as it can lie gives it."""
    best = 2**62
    for order in permutations(range(len(rows))):
        begins = [0] * len(rows)
        for at, number in enumerate(order):
            size, birth, death = rows[number]
            beside = sorted(
                (begins[other], begins[other] + rows[other][0])
                for other in order[:at]
                if rows[other][1] < death and birth < rows[other][2]
            )
            place = 0
            for low, high in beside:
                if low - place >= size:
                    break
                place = max(place, high)
            begins[number] = place
        best = min(best, top_of(rows, begins))
    return best


@given(rows_of(30))
def test_no_heuristic_lays_a_block_over_another(rows: Rows) -> None:
    spans = spans_of(rows)
    for begins in (
        place_in_order(spans, is_first_fit=False),
        place_in_order(spans, is_first_fit=True),
        place_largest_first(spans),
    ):
        assert not overlaps(rows, begins.tolist())
        assert top_of(rows, begins.tolist()) >= lower_bound(spans)


@given(rows_of(30))
def test_the_lower_bound_is_the_most_that_is_live_at_an_event(rows: Rows) -> None:
    live = [
        sum(size for size, birth, death in rows if birth <= event < death)
        for event in range(-1, 21)
    ]
    assert lower_bound(spans_of(rows)) == max(live)


@given(rows_of(6))
def test_what_is_found_lies_between_the_best_and_the_sum(rows: Rows) -> None:
    found = find_packing(spans_of(rows)).size_bytes
    assert (best_of_all(rows) if rows else 0) <= found <= sum(row[0] for row in rows)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], 0),
        ([(4, 0, 2), (4, 2, 4)], 4),  # one after the other
        ([(4, 0, 3), (4, 2, 4)], 8),  # at once
        ([(4, 0, 2), (4, 0, 4), (8, 2, 4)], 12),  # the hole below grows at the top alone
    ],
)
def test_small_cases(rows: Rows, expected: int) -> None:
    assert find_packing(spans_of(rows)).size_bytes == expected


def test_knowing_the_lifetimes_beats_the_order_of_events() -> None:
    # In order, the 6 lies above the hole that the 2 leaves.
    rows = [(2, 0, 2), (2, 1, 5), (6, 3, 5)]
    spans = spans_of(rows)
    assert top_of(rows, place_in_order(spans, is_first_fit=False).tolist()) == 10
    assert find_packing(spans).size_bytes == lower_bound(spans) == 8
    assert find_packing(spans).method == "largest first"
