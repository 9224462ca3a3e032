"""What makes an answer assumed, and what is only said beside an exact one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ullage.explain.basis import BasisKind, allocator_basis
from ullage.log.model import Record

Make = Callable[..., Record]
READ = ["read", "host read, answered as zeros", "a.py:1 in f", 2, None, 8, None]


def test_nothing_assumed_is_exact(make_record: Make) -> None:
    basis = allocator_basis([make_record("+7 F f")])
    assert (basis.kind, basis.assumptions) == (BasisKind.EXACT, ())


def test_weights_left_uninitialised_are_listed_beside_an_exact_answer(make_record: Make) -> None:
    basis = allocator_basis([make_record("+7", basis=[["weights", "made", "", 3, None, 0, None]])])
    assert basis.kind is BasisKind.EXACT
    assert [made.count for made in basis.assumptions] == [3]


@pytest.mark.parametrize(
    "assumed",
    [
        READ,
        ["call", "cusparseFoo answered with 'not supported'", "", 1, None, 0, None],
        ["workspace", "workspace", "", 1, 0, 1, 2],
    ],
)
def test_what_bytes_hang_on_makes_an_answer_assumed(
    make_record: Make, assumed: list[object]
) -> None:
    basis = allocator_basis([make_record("+7", basis=[assumed])])
    assert basis.kind is BasisKind.ASSUMED


def test_the_same_assumption_of_two_processes_is_one_entry(make_record: Make) -> None:
    basis = allocator_basis([make_record("+7", basis=[READ]), make_record("+7", basis=[READ])])
    assert [(made.where, made.count) for made in basis.assumptions] == [("a.py:1 in f", 4)]
