"""Allocations that failed: looked at as often as is worth it, and told with what they ended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ullage.players.inside.allocator import ooms
from ullage.players.inside.allocator.ooms import OutOfMemories


class OutOfMemoryError(RuntimeError):
    """In the place of torch's."""


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> tuple[OutOfMemories, list[None]]:
    """A collection, and what its looks leave."""
    looks: list[None] = []
    monkeypatch.setattr(ooms.source_location, "here", lambda: "train.py:3 in main")
    monkeypatch.setattr(ooms.source_location, "of_traceback", lambda _: "train.py:3 in main")
    torch: Any = SimpleNamespace(OutOfMemoryError=OutOfMemoryError)
    return OutOfMemories(torch, lambda: looks.append(None), None, lambda: 7), looks


def test_a_program_that_lives_with_failures_is_looked_at_seldom(
    collected: tuple[OutOfMemories, list[None]],
) -> None:
    failures, looks = collected
    for _ in range(20_000):
        failures.note(0, 512, 0, 0)
    assert len(looks) == 15  # 1, 2, 4, ... 16384
    assert len(failures.rows) == 10_000
    failures.note_exception(OutOfMemoryError("no room"), "train.py:9 in main")
    assert len(looks) == 16
    assert failures.rows[-1]["where"] == "train.py:9 in main"


@pytest.mark.parametrize(
    ("error", "ended"),
    [
        (OutOfMemoryError("no room"), "thread 'saver'"),
        (RuntimeError("CUDA error: out of memory"), "thread 'saver'"),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED"), "thread 'saver'"),
        (RuntimeError("another"), None),
        (KeyError("out of memory"), None),
        (None, None),
    ],
)
def test_a_failure_that_ended_a_thread_is_told_apart(
    collected: tuple[OutOfMemories, list[None]], error: BaseException | None, ended: str | None
) -> None:
    failures, _ = collected
    failures.note_end_of("thread 'saver'", error)
    assert failures.rows == []
    failures.note(0, 512, 0, 0)
    failures.note_end_of("thread 'saver'", error)
    assert failures.rows[0].get("ended") == ended
