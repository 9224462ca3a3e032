"""The share of a table that is tested by day: another one with each commit, and all of it by night.

    TABLE = Table("errors in a step", CASES, day=2, slow=4)

    @by_day(TABLE)
    def test_some_of_the_errors(table: Table[Case], place: int) -> None:
        case, visit = table.at(place)

    @by_night(TABLE)
    def test_all_of_the_errors(case: Case) -> None: ...

`make test` tests the first places, `make test-all` all. They are spread over the table, and each
moves by one case with each commit, so that all cases come within few commits. A case may itself be
a share, of the allocations of a step: `visit` then says which, another one each time that the case
comes. ULLAGE_TEST_TURN=k repeats the turn of a commit.
"""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import pytest
from tests.whole import digest

VARIABLE = "ULLAGE_TEST_TURN"
ROOT = Path(__file__).parent.parent
Case = TypeVar("Case")


@functools.cache
def turn() -> int:
    """The number of the commit, or of the tree where there is no history."""
    named = os.environ.get(VARIABLE)
    if named is not None:
        return int(named)
    command = ["git", "-C", str(ROOT), "rev-list", "--count", "HEAD"]
    is_shallow = (ROOT / ".git" / "shallow").exists()  # then the count is the same at each commit
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        is_shallow = True
    return int(digest(), 16) if is_shallow else int(done.stdout)


@dataclass(frozen=True, slots=True)
class Table(Generic[Case]):
    """Cases of one property, of which some are tested by day.

    Attributes:
        name: for people.
        cases: all of them.
        day: how many are tested in `make test`.
        slow: how many more in `make test-all`.
    """

    name: str
    cases: Sequence[Case]
    day: int
    slow: int = 0

    def at(self, place: int) -> tuple[Case, int]:
        """The case that is at a place in this turn, and the number of the visit."""
        places, count = self.day + self.slow, len(self.cases)
        lap, case = divmod(turn() + place * -(-count // places), count)
        return self.cases[case], lap * places + place

    def __str__(self) -> str:
        """What `make test` tests of it in this turn."""
        chosen = ", ".join(str(self.at(place)[0]) for place in range(self.day))
        return f"{self.name}: {chosen}; {self.day} of {len(self.cases)}"


def by_day(*tables: Table[Any]) -> pytest.MarkDecorator:
    """Parametrizes a test with tables and places, whose names are the same in every turn."""
    return pytest.mark.parametrize(
        ("table", "place"),
        [
            pytest.param(table, place, id=f"{table.name} {place}", marks=marks)
            for table in tables
            for place in range(table.day + table.slow)
            for marks in [pytest.mark.slow if place >= table.day else ()]
        ],
    )


def by_night(*tables: Table[Any]) -> pytest.MarkDecorator:
    """Parametrizes a test with all cases of tables, and marks it nightly."""
    return pytest.mark.parametrize(
        "case",
        [
            pytest.param(case, id=str(case), marks=pytest.mark.nightly)
            for table in tables
            for case in table.cases
        ],
    )


def describe_turn() -> list[str]:
    """Lines for the head of pytest's output: the turn, and the cases that it has chosen."""
    from tests.phantom import error_at_allocations, same_training

    tables = (*error_at_allocations.TABLES, *same_training.TABLES)
    return [
        f"tested by day in turn {turn()} ({VARIABLE}={turn()} repeats it), all by night:",
        *(f"  {table}" for table in tables if table.day),
    ]
