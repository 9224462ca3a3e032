"""Claims in columns are the rows that were appended, and the newest where there are too many."""

from __future__ import annotations

import threading
import tracemalloc
from typing import Any

import pytest

from ullage.players.inside.owners.ownership import ClaimRows

CATEGORIES = ("parameter", "gradient", "optimizer_state")


def row(number: int, address: int | None = None) -> Any:
    category = CATEGORIES[number % 3]
    place = 512 * number if address is None else address
    return (number, number % 8, place, category, [(0, f"layer{number % 5}")])


@pytest.mark.parametrize("count", [0, 1, 1023, 1024, 1025, 5000])
def test_rows_come_back_in_their_order(count: int) -> None:
    rows = [row(number) for number in range(count)]
    columns = ClaimRows(rows)
    assert len(columns) == count
    assert list(columns) == rows
    columns.keep_newest(700)
    assert list(columns) == rows[-700:]


def test_a_name_that_becomes_known_later_is_that_of_rows_before() -> None:
    name: list[tuple[int, str]] = []
    columns = ClaimRows((number, 0, 512, "gradient", name) for number in range(3000))
    name[:] = [(1, "weight")]
    assert {each[4][0] for each in columns} == {(1, "weight")}


def test_of_each_owner_of_an_address_the_last_row_is_kept() -> None:
    columns = ClaimRows(row(number, address=512 * (number % 30)) for number in range(3000))
    columns.keep_last_of_address()
    kept = list(columns)
    assert kept == sorted(kept, key=lambda each: each[0])
    assert len(kept) == len({(each[1], each[2], each[3]) for each in kept}) == 120
    assert min(each[0] for each in kept) >= 3000 - 120


def test_threads_append_whole_rows() -> None:
    columns = ClaimRows()

    def fill(first: int) -> None:
        for number in range(first, first + 20_000):
            columns.append(row(number))

    threads = [threading.Thread(target=fill, args=(20_000 * turn,)) for turn in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(columns) == [row(number) for number in range(80_000)]


def test_a_row_takes_less_than_forty_bytes() -> None:
    name = [(0, "weight")]
    tracemalloc.start()
    columns = ClaimRows(
        (10**6 + number, 0, 10**12 + number, "gradient", name) for number in range(100_000)
    )
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(columns) == 100_000
    assert size < 40 * 100_000
