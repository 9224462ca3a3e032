"""Which rungs are run: the fastest that fits is found, whatever was expected, in few runs."""

from __future__ import annotations

import pytest

from ullage.plan.trying import Rung, next_rungs

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
