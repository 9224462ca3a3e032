"""What makes an answer assumed, and what is only said beside an exact one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ullage.explain.basis import BasisKind, allocator_basis
from ullage.trace.model import Record

Make = Callable[..., Record]
SIZES = {"low_bytes": 0, "answered_bytes": 1, "high_bytes": 2}


def test_nothing_assumed_is_exact(make_record: Make) -> None:
    basis = allocator_basis([make_record("+7 F f")])
    assert (basis.kind, basis.assumptions) == (BasisKind.EXACT, ())


def test_weights_left_uninitialised_are_listed_beside_an_exact_answer(make_record: Make) -> None:
    basis = allocator_basis([make_record("+7", not_initialised={"count": 3, "bytes": 12})])
    assert basis.kind is BasisKind.EXACT
    assert [made.count for made in basis.assumptions] == [3]


@pytest.mark.parametrize(
    "assumed",
    [
        {"reads": [{"what": "host read", "where": "a.py:1 in f", "count": 2, "bytes": 8}]},
        {"refused": {"cusparseFoo": 1}},
        {"assumed": [{"what": "workspace", "count": 1, **SIZES}]},
    ],
)
def test_what_bytes_hang_on_makes_an_answer_assumed(
    make_record: Make, assumed: dict[str, object]
) -> None:
    basis = allocator_basis([make_record("+7", **assumed)])
    assert basis.kind is BasisKind.ASSUMED


def test_the_same_assumption_of_two_processes_is_one_entry(make_record: Make) -> None:
    read = {"reads": [{"what": "host read", "where": "a.py:1 in f", "count": 2, "bytes": 8}]}
    basis = allocator_basis([make_record("+7", **read), make_record("+7", **read)])
    assert [(made.where, made.count) for made in basis.assumptions] == [("a.py:1 in f", 4)]
