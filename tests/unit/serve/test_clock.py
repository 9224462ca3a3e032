"""Moments of the phantom's clock, and what it was given between them: by a log that is written
here.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ullage.clock.given_work import Fill
from ullage.log.work_log import EntryKind, WorkKind
from ullage.operate.serve.clock import Mark, Works, launches_between, seconds_between
from ullage.operate.serve.step_times import Launches
from ullage.players.inside.steps import work_log

KINDS = (
    EntryKind.GIVEN, EntryKind.MARKED, EntryKind.GIVEN, EntryKind.GRAPH, EntryKind.GIVEN,
    EntryKind.RECORDED,
)  # fmt: skip


class Log:
    """Three pieces of work that are given, of which the second comes before a graph of the fourth
    and the first.
    """

    rows = tuple(
        (graph, work, 0, 0, 0, kind)
        for kind, work, graph in zip(KINDS, (0, 0, 1, 9, 2, 0), (0, 0, 0, 7, 0, 0), strict=True)
    )

    def rows_after(self, serial: int) -> list[tuple[int, ...]]:
        return [*self.rows[serial:]]

    def works(self, first: int) -> list[tuple[Any, ...]]:
        return [(WorkKind.FILL, -1, "", [size], b"") for size in (10, 20, 30, 40)][first:]

    def captured_after(self, first: int) -> list[tuple[int, ...]]:
        return [(7, 3), (7, 0), (8, 1)][first:]


def mark(ms: float = 0.0, row: int = 0) -> Mark:
    """A moment."""
    event = SimpleNamespace(ms=ms, elapsed_time=lambda later: later.ms - ms)
    return Mark(cast(Any, event), row)


def test_seconds_are_whole_microseconds() -> None:
    assert seconds_between(mark(100.0), mark(107.2504999)) == 0.00725
    assert seconds_between(mark(1e6 + 0.1), mark(1e6 + 0.3)) == 0.0002


def test_what_was_given_between_two_moments_has_the_works_of_graphs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(work_log, "WorkLog", Log)
    assert launches_between(mark(row=0), mark(row=6)) == Launches(4, num_before_graph=2)
    assert launches_between(mark(row=4), mark(row=6)) == Launches(1)
    works = Works()
    assert [*works.between(mark(row=0), mark(row=2))] == [Fill(10)]
    assert [*works.between(mark(row=2), mark(row=6))] == [Fill(20), Fill(40), Fill(10), Fill(30)]
