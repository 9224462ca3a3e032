"""The rules of PyTorch's allocator, by themselves."""

from __future__ import annotations

from ullage.trace.caching_allocator import CachingAllocator
from ullage.units import MIB


def test_of_blocks_of_one_size_the_oldest_segments_is_taken_unless_addresses_are_given() -> None:
    for addresses, taken in (((), 0), ((200 * MIB, 100 * MIB), 1)):
        allocator = CachingAllocator(addresses=addresses)
        blocks = [allocator.allocate(20 * MIB, stream=0) for _ in range(2)]
        for block in blocks:
            allocator.free(block)
        assert allocator.allocate(20 * MIB, stream=0) is blocks[taken]


def test_segments_may_have_one_address_where_a_replay_parts_from_its_recording() -> None:
    allocator = CachingAllocator(addresses=(100 * MIB, 100 * MIB))
    for block in [allocator.allocate(20 * MIB, stream=0) for _ in range(2)]:
        allocator.free(block)
    assert allocator.reserved_bytes == 40 * MIB
    allocator.empty_cache()
    assert allocator.reserved_bytes == 0
