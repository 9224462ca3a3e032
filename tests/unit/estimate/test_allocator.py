"""The caching allocator's rules, and what must hold whatever is asked of it."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from ullage.estimate.allocator import Allocator, Block

MIB = 2**20


def test_small_requests_share_a_segment_of_2_mib() -> None:
    allocator = Allocator()
    for _ in range(4):
        allocator.allocate(MIB // 2)
    assert allocator.reserved_bytes == 2 * MIB
    allocator.allocate(512)
    assert allocator.reserved_bytes == 4 * MIB


def test_requests_of_less_than_10_mib_share_a_segment_of_20_mib() -> None:
    allocator = Allocator()
    for _ in range(3):
        allocator.allocate(6 * MIB)
    assert (allocator.reserved_bytes, allocator.allocated_bytes) == (20 * MIB, 18 * MIB)


def test_a_larger_request_gets_a_segment_of_whole_2_mib() -> None:
    allocator = Allocator()
    allocator.allocate(11 * MIB + 512)
    assert (allocator.reserved_bytes, allocator.allocated_bytes) == (12 * MIB, 12 * MIB)


def test_a_rest_of_more_than_1_mib_is_split_off() -> None:
    allocator = Allocator()
    first = allocator.allocate(20 * MIB)
    allocator.free(first)
    taken = allocator.allocate(19 * MIB)
    assert taken.size == 20 * MIB
    allocator.free(taken)
    assert allocator.allocate(19 * MIB - 512).size == 19 * MIB - 512


def test_the_best_fit_is_taken() -> None:
    allocator = Allocator()
    blocks = [allocator.allocate(size * MIB) for size in (40, 20, 30)]
    for block in blocks:
        allocator.free(block)
    assert allocator.allocate(25 * MIB).address == blocks[2].address


def test_free_neighbours_become_one() -> None:
    allocator = Allocator()
    blocks = [allocator.allocate(5 * MIB) for _ in range(4)]
    for place in (0, 2, 1, 3):
        allocator.free(blocks[place])
    assert allocator.allocate(20 * MIB).size == 20 * MIB
    assert allocator.reserved_bytes == 20 * MIB


@given(st.lists(st.tuples(st.integers(1, 60_000), st.integers(0, 40)), max_size=120))
@settings(max_examples=60, deadline=None)
def test_live_blocks_never_overlap_and_lie_in_segments(steps: list[tuple[int, int]]) -> None:
    """A step asks for so many times 512 bytes, then gives back a block by its place, if there is
    one.
    """
    allocator = Allocator()
    live: list[Block] = []
    highest = 0
    for size, place in steps:
        block = allocator.allocate(size * 512)
        assert size * 512 <= block.size <= size * 512 + MIB
        live.append(block)
        highest = max(highest, sum(one.size for one in live))
        if place < len(live):
            allocator.free(live.pop(place))
        ordered = sorted(live, key=lambda one: one.address)
        for before, after in pairwise(ordered):
            assert before.address + before.size <= after.address
        assert sum(one.size for one in live) == allocator.allocated_bytes
        assert allocator.allocated_bytes <= allocator.reserved_bytes
    assert allocator.peak_allocated_bytes == highest
