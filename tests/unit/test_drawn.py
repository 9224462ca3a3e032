"""Programs that are drawn for the table of truth: what is drawn, and what it sums up to."""

from __future__ import annotations

from collections import Counter

import pytest
from benchmarks.truth.drawn import (
    CAUGHT,
    DEVICES,
    NUM_PROGRAMS,
    PIECE_MIB,
    PROCESSES,
    TAKEN,
    Plan,
    draw,
)


def test_every_value_is_drawn_and_a_seed_draws_the_same() -> None:
    drawn = list(draw("a seed"))
    assert len(drawn) == NUM_PROGRAMS and drawn == list(draw("a seed")) != list(draw("another"))
    for name, values in (
        ("processes", PROCESSES), ("devices", DEVICES), ("taken", TAKEN), ("caught", CAUGHT),
    ):  # fmt: skip
        counts = Counter(getattr(plan, name) for plan, _, _ in drawn)
        assert counts.keys() == set(values) and min(counts.values()) >= 3


def test_what_is_missing_is_less_than_any_request() -> None:
    for plan, missing_mib, spare_mib in draw("a seed"):
        sizes = [num_mib for share in plan.shares for _, num_mib in share]
        assert 0 < missing_mib < min(sizes) and spare_mib > 0
        assert all(num_mib % PIECE_MIB == 0 for num_mib in sizes)


@pytest.mark.parametrize(
    ("devices", "shares", "need_mib"),
    [
        ("the first", [[(0, 1000)], [(0, 500)]], 1000 + 500 + 2 * 300),
        ("one each", [[(0, 1000)], [(1, 1500)]], 1500 + 300),
        ("a visible one each", [[(0, 1000)], [(0, 1500)]], 1500 + 300),
        ("two each", [[(0, 1000), (1, 700)], [(0, 500), (1, 900)]], 1600 + 2 * 300),
    ],
)
def test_the_fullest_gpu_has_all_requests_and_a_context_of_each_process(
    devices: str, shares: list[list[tuple[int, int]]], need_mib: int
) -> None:
    plan = Plan("torchrun", devices, "whole", "not", shares)
    assert plan.need_mib(context_mib=300) == need_mib
