"""Which rungs are run: the fastest that fits is found, whatever was expected, in few runs."""

from __future__ import annotations

import pytest

from ullage.search.proposals import Rung, contenders, next_rungs

COUNT = 60


def ladder_of(reserved: list[int]) -> list[Rung]:
    """Rungs of which each takes longer than the one before."""
    return [Rung(float(n), size, size, 0, n) for n, size in enumerate(reserved)]


def find(expected: list[int], real: list[int], room: int) -> tuple[Rung | None, int]:
    """The rung that is found, and how many were run; nothing is learned on the way."""
    rungs, tried = ladder_of(expected), dict[tuple[int, int], bool]()
    while some := next_rungs(rungs, tried, room, 2):
        assert not tried.keys() & {one.place for one in some}
        tried |= {one.place: real[one.choice] <= room for one in some}
    fitting = [one for one in rungs if tried.get(one.place)]
    return min(fitting, default=None), len(tried)


@pytest.mark.parametrize("room", [0, 1, 17, 58, 59])
def test_what_is_as_expected_is_found_at_once(room: int) -> None:
    sizes = list(range(COUNT - 1, -1, -1))
    found, num_runs = find(sizes, sizes, room)
    assert found is not None and sizes[found.choice] == room
    assert num_runs <= 4


@pytest.mark.parametrize("more", [-2, 1, 5])
def test_what_is_a_little_off_is_found_too(more: int) -> None:
    sizes = list(range(COUNT - 1, -1, -1))
    found, _ = find(sizes, [size + more for size in sizes], 20)
    assert found is not None and sizes[found.choice] == 20 - more


def test_where_nothing_is_expected_to_fit_the_leanest_are_tried() -> None:
    sizes = list(range(100, 100 - COUNT, -1))
    assert find(sizes, sizes, 10) == (None, 2)
    found, _ = find(sizes, [size - 35 for size in sizes], 10)
    assert found is not None and sizes[found.choice] <= 45


def test_no_rungs_are_none_to_try() -> None:
    assert next_rungs([], {}, 10, 2) == []


def test_contenders_are_the_fastest_of_each_setting_that_did_not_run() -> None:
    """Setting 0 ran; 1 is too large at first; 2 takes longer than the clock says of the best."""
    rungs = [
        Rung(0.5, 10, 10, 0, 0),
        Rung(0.6, 30, 30, 1, 0),
        Rung(0.7, 20, 20, 1, 1),
        Rung(0.8, 10, 10, 1, 2),
        Rung(1.2, 5, 5, 2, 0),
    ]
    assert contenders(rungs, {(0, 7)}, 20, 1.0) == [rungs[2]]
    assert contenders(rungs, {(0, 7)}, 20, 1.3) == [rungs[2], rungs[4]]
    assert contenders(rungs, {(0, 7), (1, 2)}, 20, 1.0) == []
