"""The largest size is found, exactly and with few runs, whatever the peak looks like."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from tests.rows import each

from ullage.search.findings import Seen
from ullage.search.sizes.sizes import Sizes

GIB = 2**30
BUDGET = 16 * GIB


def climb(
    used: Callable[[int], int],
    *,
    step: int = 1,
    first: tuple[int, ...] = (),
    fixed: int | None = None,
) -> tuple[Sizes, int]:
    """The finished search on a device where a size takes so much, and how many runs it took."""
    search = Sizes(BUDGET, step=step, first=first, fixed_bytes=fixed)
    num = 0
    while sizes := search.next():
        assert not set(sizes) & set(search.seen)
        for size in sizes:
            num += 1
            taken = used(size)
            search.note([size], [Seen(taken <= BUDGET, "", min(taken, BUDGET), 0, 0, 0)])
    return search, num


def line(fixed: int, slope: int, granule: int = 2**21) -> Callable[[int], int]:
    """A peak that grows in a straight line, in granules of the device."""
    return lambda size: -(-(fixed + slope * size) // granule) * granule


@pytest.mark.parametrize("slope", [2**20, 10**8, 10**9, 5 * 10**9])
def test_a_line_takes_few_runs(slope: int) -> None:
    used = line(3 * GIB, slope)
    search, num = climb(used)
    assert search.largest is not None and search.beyond == search.largest + 1
    assert used(search.largest) <= BUDGET < used(search.beyond)
    assert num <= 8


def test_a_good_guess_takes_two_runs() -> None:
    used = line(3 * GIB, 10**8)
    exact = next(size for size in range(1, 1000) if used(size + 1) > BUDGET)
    search, num = climb(used, first=(exact, exact + 1), fixed=3 * GIB)
    assert (search.largest, num) == (exact, 2)


def test_a_guess_that_is_a_little_too_much_takes_few_more() -> None:
    used = line(3 * GIB, 10**8)
    exact = next(size for size in range(1, 1000) if used(size + 1) > BUDGET)
    search, num = climb(used, first=(exact + 12, exact + 13), fixed=2 * GIB)
    assert search.largest == exact
    assert num <= 8


@each("seed", range(200))
def test_any_growing_peak_is_climbed_to_its_end(seed: int) -> None:
    """Several moments, each with a line of its own, and an allocator that can do with less where
    memory is short.
    """
    draw = random.Random(seed)
    lines = [line(int(draw.uniform(0, 14) * GIB), draw.randrange(1, 10**9)) for _ in range(3)]
    spared = draw.choice((1.0, 0.9))

    def used(size: int) -> int:
        taken = max(one(size) for one in lines)
        return int(taken * spared) if taken > BUDGET else taken

    exact = next(size for size in range(10**6) if used(size + 1) > BUDGET)
    search, num = climb(used)
    assert (search.largest or 0) == exact
    assert search.beyond == exact + 1
    assert num <= 24


def test_only_multiples_are_tried() -> None:
    used = line(3 * GIB, 10**8)
    search, _ = climb(used, step=8)
    assert all(size % 8 == 0 for size in search.seen)
    assert search.largest is not None and search.beyond == search.largest + 8


def test_where_nothing_fits_the_first_size_is_tried() -> None:
    search, _ = climb(line(17 * GIB, 1))
    assert search.largest is None
    assert search.beyond == 1


def test_a_peak_that_does_not_grow_has_an_end() -> None:
    search, num = climb(lambda _: 5 * GIB)
    assert search.beyond is None
    assert num <= 16


def test_a_peak_that_stops_growing_has_an_end() -> None:
    """As where a data set has no more samples than that."""
    search, num = climb(lambda size: line(3 * GIB, 10**7)(min(size, 100)))
    assert search.beyond is None
    assert num <= 16
