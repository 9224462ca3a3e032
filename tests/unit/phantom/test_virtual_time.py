"""The clock and its log of work: a row is read before the work that it refers to."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from ullage.players.phantom.virtual_time import _Played


class BusyLog:
    """Another thread gives a new piece of work just before rows are read."""

    def __init__(self) -> None:
        self.num_works = 0

    def rows_after(self, serial: int) -> list[tuple[int, ...]]:
        self.num_works += 1
        return [(0, self.num_works - 1)]


class Reader(_Played):
    """Notes how much work was looked up, and what the rows refer to."""

    def __init__(self) -> None:
        self._log = BusyLog()  # type: ignore[assignment]
        self._serial = 0
        self.num_known = 0

    def _look_up_costs(self) -> None:
        self.num_known = self._log.num_works  # type: ignore[attr-defined]

    def _play(self, row: tuple[int, ...]) -> None:
        assert row[1] < self.num_known, "the row refers to work that was not looked up"


def test_work_that_is_given_meanwhile_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader()
    log = SimpleNamespace(end=lambda: reader._serial + 1)
    monkeypatch.setitem(sys.modules, "ullage.players.inside.steps.work_log", log)  # type: ignore[arg-type]
    assert reader.advance() and reader.advance()
    assert reader._serial == 2
