"""Which blocks that libraries were handed belong to a ring that has lost its oldest events."""

from __future__ import annotations

import array
from typing import Any

import pytest

from ullage.players.inside.allocator.event_hook import Ring, place_workspaces

LIVES, GONE, NEW = 512, 1024, 2048


def make_ring(first: int) -> Ring:
    """A ring from 100 on, with a block from before (born at 10), and one that came in it."""
    addresses = [LIVES, NEW] if first else [LIVES, GONE, NEW]
    columns: Any = {
        "bytes": array.array("q", [512] * len(addresses)).tobytes(),
        "address": array.array("q", addresses).tobytes(),
        "device": bytes(len(addresses)),
    }
    return Ring(first, array.array("Q", [10] if first else []), columns)


def test_scratch_that_lives_on_stays_when_its_row_leaves_the_ring() -> None:
    handed = [(5, LIVES, "cuDNN"), (20, LIVES, "cuBLAS"), (30, GONE, "cuFFT"), (120, NEW, "cuDNN"),
              (60, LIVES, "cuBLAS")]  # fmt: skip
    rows = place_workspaces(handed, make_ring(100), 10)
    # At 5 another block was at that address.
    assert rows == [[100, 0, LIVES, 0, "cuBLAS"], [120, 0, NEW, 0, "cuDNN"]]
    assert len(place_workspaces(handed, make_ring(0), 10)) == 5


@pytest.mark.parametrize("max_rows", [1, 2, 3])
def test_of_too_many_rows_each_block_has_one_for_each_library(max_rows: int) -> None:
    names = ("cuDNN", "cuBLAS")
    handed = [(20, LIVES, "cuBLAS")]
    handed += [(200 + turn, NEW, names[turn % 2]) for turn in range(10)]
    rows = place_workspaces(handed, make_ring(100), max_rows)
    assert rows == [
        [100, 0, LIVES, 0, "cuBLAS"], [200, 0, NEW, 0, "cuDNN"], [201, 0, NEW, 0, "cuBLAS"],
    ][:1] + [[200, 0, NEW, 0, "cuDNN"], [201, 0, NEW, 0, "cuBLAS"]][3 - max_rows:]  # fmt: skip
