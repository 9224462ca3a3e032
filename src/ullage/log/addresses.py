"""The addresses of segments: of which system's driver they are, and in which order they were handed
out (players/phantom/csrc/machine/address_space.c).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ullage.ground.protocol.run import Platform
from ullage.ground.units import MIB
from ullage.log.snapshot import Snapshot

# Linux maps what a process asks for below 2**47, downwards. The drivers of Windows and WSL2 choose
# addresses of their own, from a few GiB on; the phantom's for them begin at 2**44.
_LOWEST_ON_LINUX = 1 << 45

# Linux's driver maps chunks of multiples of this.
_CHUNK_UNIT_BYTES = 32 * MIB


@dataclass(frozen=True, slots=True)
class Chunk:
    """Addresses that Linux's driver mapped as one, with the segments in it as pairs of address and
    bytes, by address.
    """

    start: int
    end: int
    segments: tuple[tuple[int, int], ...]


def platform_of(snapshot: Snapshot, device: int) -> Platform:
    """The system on which a device's addresses were handed out; Linux where it has none."""
    events, table = snapshot.events_of(device), snapshot.segments
    addresses = [*table.address[table.device == device].tolist(), *events.address[:1].tolist()]
    return platform_of_addresses(addresses)


def platform_of_addresses(addresses: Iterable[int]) -> Platform:
    """The system on which these were handed out; Linux where there is none."""
    highest = max(addresses, default=_LOWEST_ON_LINUX)
    return Platform.LINUX if highest >= _LOWEST_ON_LINUX else Platform.WINDOWS


def find_chunks(segments: Iterable[tuple[int, int]]) -> list[Chunk]:
    """The least chunks that these segments, pairs of address and bytes, can be in; by address.

    The first allocation of a chunk is at its start, so a segment that is at no multiple of 32 MiB
    is in the chunk of what lies before it.
    """
    chunks: list[Chunk] = []
    for segment in sorted(segments):
        address, size = segment
        start = address // _CHUNK_UNIT_BYTES * _CHUNK_UNIT_BYTES
        end = -(-(address + size) // _CHUNK_UNIT_BYTES) * _CHUNK_UNIT_BYTES
        before = chunks[-1] if chunks else None
        if before and (start < before.end or (start == before.end and start != address)):
            chunks[-1] = Chunk(before.start, max(before.end, end), (*before.segments, segment))
        else:
            chunks.append(Chunk(start, end, (segment,)))
    return chunks


def in_order_of_request(
    segments: Iterable[tuple[int, int]], platform: Platform
) -> list[tuple[int, int]]:
    """Segments in an order in which that system's driver gives them addresses of the same order."""
    if platform is Platform.WINDOWS:
        return sorted(segments)
    return [segment for chunk in reversed(find_chunks(segments)) for segment in chunk.segments]
