"""The ranges of a trace: what a list of many short lists says is what the plain list says, and many
ranges take no longer each than few.
"""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage.explain.fragmentation import find_fragmentation
from ullage.ground.units import MIB
from ullage.log import segment_lives
from ullage.log.blocks import Blocks
from ullage.log.replay import Replay
from ullage.log.segment_lives import SegmentLives

STEPS = st.lists(
    st.tuples(st.booleans(), st.integers(0, 200), st.integers(1, 30), st.integers(0, 9)),
    max_size=80,
)


def cut(ranges: dict[int, tuple[int, int]], address: int, size: int) -> list[tuple[int, int, int]]:
    """The same by looking at every range."""
    parts, end = [], address + size
    for begin, (length, death) in sorted(ranges.items()):
        low, high = max(begin, address), min(begin + length, end)
        if low >= high:
            continue
        del ranges[begin]
        if begin < low:
            ranges[begin] = (low - begin, death)
        if high < begin + length:
            ranges[high] = (begin + length - high, death)
        parts.append((low, high - low, death))
    return parts


@given(steps=STEPS)
def test_ranges_are_those_of_a_search_through_all(steps: list[tuple[bool, int, int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_lives, "_MAX_PART", 4)
        ours, plain = segment_lives._Ranges(), dict[int, tuple[int, int]]()
        for is_added, address, size, death in steps:
            assert ours.cut_out(address, size) == cut(plain, address, size)
            if is_added:
                ours.add(address, size, death)
                plain[address] = (size, death)
            assert list(ours.all()) == [(begin, *plain[begin]) for begin in sorted(plain)]


def lives_of(count: int) -> Replay:
    """So many segments of 2 MiB with two blocks in each."""
    address = np.arange(count, dtype=np.int64) * 4 * MIB + 2**36
    begins = np.repeat(address, 2) + np.tile([0, MIB], count)
    zeros, ones = np.zeros(2 * count, dtype=np.int64), np.ones(2 * count, dtype=np.int64)
    blocks = Blocks(
        address=begins, size_bytes=512 * ones, requested_bytes=512 * ones, birth=-ones,
        death=ones, stack=zeros.astype(np.uint32), stream=zeros, is_exact=ones.astype(bool),
        device=zeros, num_events=1,
    )  # fmt: skip
    reserved = SegmentLives(address, zeros[:count] + 2 * MIB, -ones[:count], ones[:count])
    return Replay(blocks, reserved, ())


def test_the_blocks_of_each_segment_are_its_own() -> None:
    report = find_fragmentation(lives_of(50), 0)
    assert sorted(pin.blocks for pin in report.pinned) == [(2 * n, 2 * n + 1) for n in range(50)]


@pytest.mark.nightly
def test_four_times_the_segments_take_about_four_times_as_long() -> None:
    took = []
    for count in (25_000, 100_000):
        lives = lives_of(count)
        began_s = time.process_time()
        find_fragmentation(lives, 0)
        took.append(time.process_time() - began_s)
    assert took[1] < 9 * took[0], "a scan of all blocks for each segment takes 16 times as long"
