"""Tables of which a share is tested by day: all cases come within few commits."""

from __future__ import annotations

import pytest
from tests import rotation
from tests.rotation import Table, by_day


@pytest.mark.parametrize(("count", "day", "slow"), [(36, 3, 4), (17, 2, 6), (5, 1, 1), (1, 1, 0)])
def test_all_cases_come_within_as_many_turns_as_there_are_to_a_place(
    monkeypatch: pytest.MonkeyPatch, count: int, day: int, slow: int
) -> None:
    table = Table("numbers", range(count), day, slow)
    visits: dict[int, list[int]] = {number: [] for number in range(count)}
    for turn in range(900, 900 + 2 * count):
        monkeypatch.setattr(rotation, "turn", lambda turn=turn: turn)
        for place in range(day + slow):
            number, visit = table.at(place)
            visits[number].append(visit)
        if turn == 900 + -(-count // (day + slow)) - 1:
            assert all(visits.values())
    # A case that is itself a share takes another one each time.
    assert all(len(set(seen)) == len(seen) for seen in visits.values())


def test_places_have_the_same_names_in_every_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table("numbers", range(9), 1, 2)
    names = []
    for turn in ("1", "2"):
        monkeypatch.setenv(rotation.VARIABLE, turn)
        names.append([one.id for one in by_day(table).args[1]])
    assert names[0] == names[1] == ["numbers 0", "numbers 1", "numbers 2"]


def test_the_head_of_the_output_says_how_a_turn_is_repeated() -> None:
    first, *rest = rotation.describe_turn()
    assert f"{rotation.VARIABLE}={rotation.turn()} repeats it" in first
    assert any("errors in a guarded step: sweep" in line for line in rest)
