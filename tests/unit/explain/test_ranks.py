"""Which mesh the process groups of rank 0 tell of, and which ranks are played to know them all."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from ullage.explain.compare import ranks
from ullage.explain.compare.ranks import Axis, find_axes
from ullage.ground.errors import SpecError
from ullage.players.phantom.launch import LaunchOptions
from ullage.players.phantom.rank import Rank
from ullage.search.runs import survey
from ullage.search.runs.job import Job
from ullage.search.runs.survey import Survey


@pytest.mark.parametrize(
    ("groups", "axes"),
    [
        ([], [(1, 64)]),
        ([range(64)], [(1, 64)]),
        ([range(64), range(8), range(0, 64, 8)], [(1, 8), (8, 8)]),
        ([range(64), range(0, 64, 16)], [(1, 16), (16, 4)]),
        ([range(64), range(0, 32, 2), range(0, 64, 32)], [(1, 2), (2, 16), (32, 2)]),
        ([range(0, 64, 16)], [(1, 16), (16, 4)]),
        ([(0, 5, 6), (3, 4), range(0, 64, 16)], [(1, 16), (16, 4)]),
        ([range(2), range(0, 8, 2), range(0, 64, 8)], [(1, 2), (2, 4), (8, 8)]),
    ],
)  # fmt: skip
def test_axes_are_found_and_cover_the_world(
    groups: list[range], axes: list[tuple[int, int]]
) -> None:
    found = find_axes(groups, 64)
    assert list(found) == [Axis(*axis) for axis in axes]
    assert math.prod(axis.size for axis in found) == 64


def make_survey(
    monkeypatch: pytest.MonkeyPatch,
    world_size: int,
    groups: Sequence[Sequence[int]],
    kind_of: Callable[[int], int],
) -> tuple[Survey, list[int]]:
    """A survey of ranks that are alike where they are of a kind, and those that were played."""
    played: list[int] = []

    class Runs:
        was_interrupted = False

        def __init__(self, jobs: Sequence[Job], *_: Any) -> None:
            numbers = [job.options.rank.number for job in jobs if job.options.rank is not None]
            played.extend(numbers)
            process = SimpleNamespace(record=SimpleNamespace(groups=groups))
            self.results = [SimpleNamespace(number=n, processes=[process]) for n in numbers]

        def run_all(self) -> None:
            """All are there."""

    monkeypatch.setattr(survey, "ParallelRuns", Runs)
    monkeypatch.setattr(ranks, "event_digest", lambda run: b"%d" % kind_of(run.number))
    nothing: Any = None
    options = LaunchOptions(rank=Rank(0, world_size, world_size))
    found = Survey(Job(nothing, nothing, nothing, options))
    found.play((0,))
    return found, played


def test_ranks_between_two_that_are_alike_are_not_played(monkeypatch: pytest.MonkeyPatch) -> None:
    found, played = make_survey(monkeypatch, 64, [], lambda _: 0)
    assert found.find_distinct() == {0: tuple(range(64))}
    assert sorted(played) == [0, 32, 63]  # both ends, and one as a check


def test_a_border_between_unlike_ranks_is_found_on_its_axis(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups = [range(8), range(0, 64, 8)]
    found, played = make_survey(monkeypatch, 64, groups, lambda rank: rank // 8 >= 3)
    assert found.find_distinct() == {0: tuple(range(24)), 24: tuple(range(24, 64))}
    assert len(played) == len(set(played)) < 12


def test_ranks_that_all_differ_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    found, played = make_survey(monkeypatch, 512, [], lambda rank: rank)
    with pytest.raises(SpecError, match="differ in more than 256 ways"):
        found.find_distinct()
    assert len(played) <= 256
