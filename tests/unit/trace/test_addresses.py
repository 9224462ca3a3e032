"""What addresses say of the system that gave them, and of their order."""

from __future__ import annotations

import pytest

from ullage.ground.protocol.run import Platform
from ullage.ground.units import MIB
from ullage.log.addresses import find_chunks, in_order_of_request, platform_of_addresses

BASE = 0x7F0000000000


def at(*segments: tuple[int, int]) -> list[tuple[int, int]]:
    """Addresses and sizes from MiB above the base."""
    return [(BASE + place * MIB, size * MIB) for place, size in segments]


@pytest.mark.parametrize(
    ("address", "platform"),
    [
        (0x7F79A0000000, Platform.LINUX),  # Linux on a real GPU
        (0xB02600000, Platform.WINDOWS),  # Windows
        (0x502000000, Platform.WINDOWS),  # WSL2
        (0x4FFF54000000, Platform.LINUX),  # the phantom
        (0x100000000000, Platform.WINDOWS),  # the phantom, upwards
    ],
)
def test_the_system_shows_in_the_address(address: int, platform: Platform) -> None:
    assert platform_of_addresses([address]) is platform


def test_a_chunk_has_what_fills_its_rest_and_begins_with_its_first_segment() -> None:
    segments = at((0, 98), (98, 26), (128, 20), (160, 32), (200, 20), (192, 4))
    chunks = find_chunks(segments)
    assert [((c.start - BASE) // MIB, (c.end - BASE) // MIB) for c in chunks] == [
        (0, 128),
        (128, 160),
        (160, 192),
        (192, 224),
    ]


def test_a_segment_that_begins_at_no_chunk_belongs_to_the_one_before_it() -> None:
    (chunk,) = find_chunks(at((0, 20), (34, 20)))
    assert (chunk.end - chunk.start) // MIB == 64


def test_segments_are_asked_for_from_the_highest_chunk_down_and_upwards_within_one() -> None:
    segments = at((0, 98), (98, 26), (128, 20))
    first, second, third = segments
    assert in_order_of_request(segments, Platform.LINUX) == [third, first, second]
    assert in_order_of_request(reversed(segments), Platform.WINDOWS) == segments
