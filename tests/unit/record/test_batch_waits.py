"""Waits for batches: what counts as lost, whose waits count, and any number of steps in bounded
memory.
"""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage.players.inside.patches import Patches
from ullage.players.inside.steps.batch_waits import BatchWaits, wait_in


class FakeIterator:
    """A DataLoader's iterator, whose next batch takes so many seconds of the clock."""

    _num_workers = 3

    def __init__(self, world: World, waits_s: list[float]) -> None:
        self._world = world
        self._waits_s = iter(waits_s)

    def __iter__(self) -> FakeIterator:
        return self

    def __next__(self) -> str:
        self._world.now_s += next(self._waits_s)
        return "batch"


class World:
    """A clock, and a torch whose stream ends its work at `idle_s`."""

    def __init__(self) -> None:
        self.now_s = self.idle_s = 0.0
        self.is_capturing = False
        stream = SimpleNamespace(query=self._is_idle)
        cuda = SimpleNamespace(
            is_initialized=lambda: True,
            is_current_stream_capturing=lambda: self.is_capturing,
            current_stream=lambda: stream,
        )
        dataloader = SimpleNamespace(_BaseDataLoaderIter=FakeIterator)
        data = SimpleNamespace(dataloader=dataloader)
        self.torch: Any = SimpleNamespace(cuda=cuda, utils=SimpleNamespace(data=data))

    def _is_idle(self) -> bool:
        if self.is_capturing:
            raise RuntimeError("operation not permitted when stream is capturing")
        return self.now_s >= self.idle_s

    def waits(self, max_rows: int = 8) -> BatchWaits:
        return BatchWaits(self.torch, max_rows=max_rows, now=lambda: self.now_s)


class Row(NamedTuple):
    """The columns of a row."""

    first: int
    num_steps: int
    seconds: float
    waited_s: float
    idle_low_s: float
    idle_high_s: float


def rows_of(waits: BatchWaits) -> list[Row]:
    """What the record has of them."""
    return [Row(*row) for row in waits.fields()["batch_waits"]["waits"]]


def test_a_wait_is_lost_from_where_the_gpu_has_nothing_left() -> None:
    world, patches = World(), Patches()
    waits = world.waits()
    original = FakeIterator.__next__
    waits.install(patches)
    # The work that is given in a step: nothing, two seconds, and more than the wait.
    for work_s in (0.0, 2.0, 5.0):
        world.idle_s = world.now_s + work_s
        assert list(FakeIterator(world, [3.0])) == ["batch"]
        world.now_s += 1.0
        waits.end_step(1)
    patches.undo()
    waits.remove()
    assert FakeIterator.__next__ is original
    assert waits.fields()["batch_waits"] == {
        "num_workers": 3,
        "waits": [
            [0, 1, 4.0, 3.0, 3.0, 3.0],
            [1, 1, 4.0, 3.0, 0.0, 3.0],
            [2, 1, 4.0, 3.0, 0.0, 0.0],
        ],
    }


def test_while_a_graph_is_captured_nothing_is_asked() -> None:
    world = World()
    world.is_capturing = True
    waits = world.waits()
    waits.wait_in(lambda: None)
    waits.end_step(1)
    assert world.is_capturing
    assert rows_of(waits)[0].idle_high_s == 0.0


def test_a_loader_within_a_loader_counts_once_and_an_exception_passes() -> None:
    world = World()
    waits = world.waits()

    def load() -> None:
        waits.wait_in(spend, 1.0)
        raise KeyError("a row")

    def spend(seconds: float) -> None:
        world.now_s += seconds

    with pytest.raises(KeyError, match="a row"):
        waits.wait_in(load)
    waits.end_step(1)
    assert rows_of(waits)[0].waited_s == 1.0


def test_a_thread_that_reads_ahead_does_not_count_and_one_that_steps_does() -> None:
    world = World()
    waits = world.waits()

    def spend() -> None:
        world.now_s += 1.0

    def read_ahead() -> None:
        waits.wait_in(spend)

    def train() -> None:
        for _ in range(2):
            waits.wait_in(spend)
            waits.end_step(1)

    for body in (read_ahead, train):
        thread = threading.Thread(target=body)
        thread.start()
        thread.join()
    # The first wait of a thread that has not stepped yet is not known to be the program's.
    assert [row.waited_s for row in rows_of(waits)] == [0.0, 1.0]


def test_where_another_thread_ends_the_steps_the_main_threads_waits_count() -> None:
    """As where an optimizer steps in backward, which autograd runs in a thread of its own."""
    world = World()
    waits = world.waits()

    def spend() -> None:
        world.now_s += 1.0

    for _ in range(2):
        waits.wait_in(spend)
        thread = threading.Thread(target=waits.end_step, args=(1,))
        thread.start()
        thread.join()
    assert [row.waited_s for row in rows_of(waits)] == [1.0, 1.0]


def test_prefetch_waits_count_while_a_recording_is_there() -> None:
    world, patches = World(), Patches()
    waits = world.waits()
    waits.install(patches)

    def spend() -> str:
        world.now_s += 2.0
        return "batch"

    assert wait_in(spend) == "batch"
    patches.undo()
    waits.remove()
    assert wait_in(spend) == "batch"
    waits.end_step(1)
    (row,) = rows_of(waits)
    assert (row.seconds, row.waited_s) == (4.0, 2.0)


@given(st.lists(st.integers(0, 100), max_size=100))
def test_rows_hold_every_step_in_bounded_memory(steps: list[int]) -> None:
    world = World()
    waits = world.waits(max_rows=8)

    def spend(seconds: int) -> None:
        world.now_s += seconds

    for seconds in steps:
        waits.wait_in(spend, seconds)
        waits.end_step(1)
    rows = rows_of(waits)
    assert len(rows) <= 8
    assert sum(row.num_steps for row in rows) == len(steps)
    for row in rows:
        part = steps[row.first : row.first + row.num_steps]
        assert row.waited_s == row.seconds == sum(part)
