"""What a recording keeps: the latest rows, as many as the ring pays for; it says what went."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ullage.ground.units import MIB
from ullage.players.inside.allocator.ooms import OutOfMemories
from ullage.players.inside.allocator.retention import Retention
from ullage.players.inside.entrances.settings import Mode, RecordingSettings
from ullage.players.inside.owners.holders import Holders
from ullage.players.inside.process.publication import Publication

BYTES = {"num_marks": 128, "num_claims": 32, "num_steps": 64, "num_holders": 256, "num_ooms": 512}


@pytest.mark.parametrize("mode", [Mode.FULL, Mode.EVENTS])
@pytest.mark.parametrize("ring_bytes", [MIB, 5 * MIB + 1, 64 * MIB, 1024 * MIB])
def test_events_stacks_and_rows_share_the_ring(mode: Mode, ring_bytes: int) -> None:
    settings = RecordingSettings(mode=mode, ring_bytes=ring_bytes)
    limits = settings.limits
    rows = sum(getattr(limits, name) * size for name, size in BYTES.items())
    stacks = settings.stack_ring_bytes if mode is Mode.FULL else 0
    assert 0.9 * ring_bytes < settings.event_ring_bytes + stacks + rows <= ring_bytes
    assert limits.num_steps % 2 == 0
    assert min(getattr(limits, name) for name in BYTES) >= 8


class Rows:
    """In the place of claims: positions."""

    def __init__(self, positions: list[int]) -> None:
        self.positions = positions

    def __len__(self) -> int:
        return len(self.positions)

    def keep_from(self, first: int, _births: object) -> None:
        self.positions = [position for position in self.positions if position >= first]

    def keep_newest(self, count: int) -> int:
        excess = max(0, len(self.positions) - count)
        del self.positions[:excess]
        return excess


class Marks:
    """In the place of phases."""

    def __init__(self, positions: list[int]) -> None:
        self.marks = [(position, "step", None) for position in positions]

    def keep_marks_from(self, first: int) -> None:
        self.marks[:] = [mark for mark in self.marks if mark[0] >= first]

    def keep_last_marks(self, count: int) -> int:
        excess = max(0, len(self.marks) - count)
        del self.marks[:excess]
        return excess


def make(num_marks: int, num_claims: int, first: int, *, has_others: bool = False) -> Any:
    """What keeps 80 marks and 40 claims, with so many at the positions from 0 on, and a ring that
    begins at `first`.
    """
    limits = replace(RecordingSettings(mode=Mode.EVENTS).limits, num_marks=80, num_claims=40)
    modules: Any = SimpleNamespace(has_others=has_others)
    phases: Any = Marks(list(range(num_marks)))
    claims: Any = Rows(list(range(num_claims)))
    holders: Any = SimpleNamespace(keep_from=lambda _first: None)
    ring = SimpleNamespace(first=first, births_by_address=dict)
    hook: Any = SimpleNamespace(num_lost=first, ring=lambda: ring)
    recorder: Any = SimpleNamespace(phases=phases, modules=modules, claims=claims, holders=holders)
    return Retention(limits, hook, recorder), phases, claims


def test_below_the_limits_nothing_goes() -> None:
    retention, phases, claims = make(80, 40, 70)
    retention.end_step(1)
    assert (len(phases.marks), len(claims)) == (80, 40)
    assert retention.remarks() == []


def test_what_has_left_the_ring_goes_and_nothing_is_said() -> None:
    retention, phases, claims = make(100, 50, 45)
    retention.end_step(1)
    assert [mark[0] for mark in phases.marks] == list(range(45, 100))
    assert claims.positions == list(range(45, 50))
    assert retention.remarks() == []


def test_the_oldest_of_too_many_go_and_it_is_said() -> None:
    retention, phases, claims = make(100, 50, 0, has_others=True)
    retention.note_mark("step")
    assert [mark[0] for mark in phases.marks] == list(range(40, 100))
    assert claims.positions == list(range(20, 50))
    marks, owners, modules = retention.remarks()
    assert marks.startswith("the oldest 40 marks") and "up to 20 blocks" in owners
    assert '"others"' in modules


def test_holders_are_one_row_for_each_block_and_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    torch: Any = SimpleNamespace(
        Tensor=type("Tensor", (), {}),
        nn=SimpleNamespace(Parameter=type("Parameter", (), {}), Module=type("Module", (), {})),
    )
    holders = Holders(torch, max_rows=3)
    noted: list[tuple[int, int, str]] = []

    def note(self: Holders, *_: object) -> None:
        self.rows += [(position, 0, address, chain) for position, address, chain in noted]
        self.graphs += [(position, 100 - position, chain) for position, _, chain in noted]

    monkeypatch.setattr(Holders, "_note", note)
    monkeypatch.setattr(holders._search, "tensors", lambda *_: [("x", None)])
    monkeypatch.setattr("ullage.players.inside.owners.holders.variable_roots", list)
    for turn in range(5):
        noted[:] = [(turn, 512, "x in main()"), (turn, 1024, "y in main()")]
        holders.look()
    assert holders.rows == [(4, 0, 512, "x in main()"), (4, 0, 1024, "y in main()")]
    assert holders.graphs == [(0, 100, "x in main()"), (0, 100, "y in main()")], "the largest"
    noted[:] = [(9, 2048, "z"), (9, 4096, "z")]
    holders.look()
    assert [row[2] for row in holders.rows] == [1024, 2048, 4096]
    holders.keep_from(5)
    assert [row[0] for row in holders.rows] == [9, 9]
    assert holders.graphs == [(9, 91, "z")]


def test_of_failures_the_first_and_the_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "ullage.players.inside.allocator.ooms.source_location.here", lambda: "train.py:3"
    )
    torch: Any = SimpleNamespace(OutOfMemoryError=MemoryError)
    positions = iter(range(100))
    ooms = OutOfMemories(torch, lambda: None, 4, lambda: next(positions))
    for _ in range(100):
        ooms.note(0, 512, 0, 0)
    assert [row["position"] for row in ooms.rows] == [0, 1, 2, 99]


def test_what_begins_is_published_and_what_ends_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    torch: Any = SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: True))
    unused: Any = None
    publication = Publication(torch, unused, unused)
    phases: list[str | None] = []
    monkeypatch.setattr(publication, "_publish", lambda: phases.append(publication._phase))
    for kind in ("forward_begin", "forward_end", "backward_begin"):
        publication.note_mark(kind)
    publication.note_oom()
    for kind in ("backward_end", "optimizer_begin", "optimizer_end"):
        publication.note_mark(kind)
    publication.note_step(5, 6, 0.1)
    assert phases == ["forward", "backward", "backward", "optimizer", None]
