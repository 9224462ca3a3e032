"""One test of many rows: every row runs, every offender is named, and fixtures come as always."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from tests.rows import MOST_NAMED, each


def test_every_offender_is_named_with_its_line_and_its_value() -> None:
    ran = []

    @each(("word", "size"), [("one", 3), ("three", 4), ("four", 4), ("seven", 6)])
    def check(word: str, size: int) -> None:
        ran.append(word)
        assert len(word) == size

    with pytest.raises(pytest.fail.Exception) as caught:
        check()
    assert ran == ["one", "three", "four", "seven"]
    head, *lines = str(caught.value).splitlines()
    assert head == "2 of 4 rows fail:"
    line = inspect.getsourcelines(check)[1] + 3
    assert lines == [
        f"  word='three', size=4: test_rows.py:{line}: assert 5 == 4 + where 5 = len('three')",
        f"  word='seven', size=6: test_rows.py:{line}: assert 5 == 6 + where 5 = len('seven')",
    ]


def test_a_single_offender_shows_all_that_it_says() -> None:
    @each("size", [1, 2], name=lambda size: f"the size {size}")
    def check(size: int) -> None:
        assert list(range(size)) == [0], "a row of numbers"

    with pytest.raises(AssertionError, match=r"a row of numbers\nassert \[0, 1\] == \[0\]") as one:
        check()
    assert one.value.__notes__ == ["the row: the size 2; the other 1 hold"]


def test_many_offenders_make_a_short_list() -> None:
    @each("number", range(100))
    def check(number: int) -> None:
        raise ValueError(f"{number}: " + 5000 * "x")

    with pytest.raises(pytest.fail.Exception) as caught:
        check()
    lines = str(caught.value).splitlines()
    assert len(lines) == MOST_NAMED + 2 and lines[-1] == f"  and {100 - MOST_NAMED} more"
    assert "ValueError: 0: xxx" in lines[1] and max(map(len, lines)) < 400


def test_a_row_that_skips_is_an_error() -> None:
    @each("number", [1, 2])
    def check(number: int) -> None:
        pytest.skip(f"no {number}")

    with pytest.raises(AssertionError, match=r"number=1: a row cannot skip \(no 1\)"):
        check()


@each("number", [1, 2])
def test_a_check_may_take_fixtures(tmp_path: Path, number: int) -> None:
    assert tmp_path.is_dir() and number
