"""The share of the last second in which kernels ran."""

from __future__ import annotations

import random

import pytest
from tests.rows import each

from ullage.clock.cost import Category, Cost
from ullage.clock.duration import Duration
from ullage.log.work_log import EntryKind
from ullage.players.phantom.nvml.load import Load, Share


def covered_s(intervals: list[tuple[float, float]], begin_s: float, end_s: float) -> float:
    """The seconds between two moments that lie in an interval: by sorting all of them."""
    seconds, until_s = 0.0, begin_s
    for start, end in sorted(intervals):
        seconds += max(0.0, min(end, end_s) - max(start, until_s))
        until_s = max(until_s, min(end, end_s))
    return seconds


@each("seed", range(20))
def test_intervals_in_order_are_covered_once(seed: int) -> None:
    """Of one stream, and of another that begins within what the first does."""
    chance = random.Random(seed)
    share, intervals, at_s = Share(), [], 0.0
    while at_s < 2.5:
        start_s = at_s + chance.random() * 0.05 * chance.randrange(2)
        at_s = start_s + chance.random() * 0.06
        intervals.append((start_s, at_s))
        middle_s = (start_s + at_s) / 2
        intervals.append((middle_s, middle_s + chance.random() * 0.02))
        for interval in intervals[-2:]:
            share.add(*interval)
        at_s = max(at_s, intervals[-1][1])
        now_s = max(0.01, at_s // 0.01 * 0.01)
        window_s = min(1.0, now_s)
        expected = 100 * covered_s(intervals, now_s - window_s, now_s) / window_s
        assert share.percent(now_s + 1e-9) == pytest.approx(expected, abs=0.6)


def test_a_share_falls_when_nothing_comes() -> None:
    share = Share()
    share.add(0.0, 1.0)
    shares = [share.percent(now_s + 0.005) for now_s in (0.5, 1.0, 1.25, 1.75, 2.0, 9.0)]
    assert shares == [100, 100, 75, 25, 0, 0]


def test_an_interval_beside_a_longer_one_adds_nothing() -> None:
    share = Share()
    share.add(0.0, 0.5)
    share.add(0.1, 0.4)
    assert share.percent(1.005) == 50


def cost(category: Category) -> Cost:
    return Cost(Duration(1.0, 1.0, 1.0, "a test"), category, "a kernel")


def test_kernels_count_and_copies_do_not() -> None:
    shares: list[tuple[int, int, int]] = []
    load = Load(2, lambda *row: shares.append(row))
    costs = [cost(Category.MATRIX_PRODUCTS), cost(Category.COPIES), cost(Category.MEMORY_BOUND)]
    given, graph, waited = EntryKind.GIVEN, EntryKind.GRAPH, EntryKind.WAITED
    load.add((0, 0, 0, 0, 7, given, 0), costs, 0.0, 0.2)
    load.add((0, 1, 0, 0, 7, given, 0), costs, 0.2, 0.4)
    load.add((0, 2, 0, 0, 7, given, 0), costs, 0.4, 0.5)
    load.add((0, 0, 0, 0, 7, waited, 0), costs, 0.5, 0.9)
    load.add((0, 0, 0, 0, 8, graph, 1), costs, 0.0, 0.25)
    load.tell(1.005)
    load.tell(1.006)  # no bin further
    assert shares == [(0, 30, 10), (1, 25, 0)]
