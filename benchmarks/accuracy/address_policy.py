"""The driver's order of addresses once more, as plainly as it can be written: what the tests hold
players/phantom/csrc/machine/address_space.c against, and what recordings are replayed with, because
here segments can be placed where they were recorded.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable

from ullage.ground.protocol.run import Platform
from ullage.ground.units import MIB
from ullage.log.addresses import find_chunks

CHUNK_BYTES = 32 * MIB
_TOP = 1 << 47
_Range = tuple[int, int]  # from, to


class Addresses:
    """What a driver hands out; `take` and `give_back` whole pages of 2 MiB."""

    def take(self, size: int) -> int:
        """The address of so many bytes."""
        raise NotImplementedError

    def give_back(self, address: int, size: int) -> None:
        """They are free again."""
        raise NotImplementedError


class WindowsAddresses(Addresses):
    """The lowest free range that is large enough."""

    def __init__(self, segments: Iterable[_Range] = (), _earlier: Iterable[_Range] = ()) -> None:
        """segments: address and bytes of those that are there; what is new comes above them."""
        self._free = [(max((a + n for a, n in segments), default=CHUNK_BYTES), _TOP)]

    def take(self, size: int) -> int:
        return _take_lowest(self._free, size) or 0

    def give_back(self, address: int, size: int) -> None:
        _add(self._free, (address, address + size))


class LinuxAddresses(Addresses):
    """Chunks of multiples of 32 MiB, each at the top of the highest gap that has room; the newest
    chunk with room comes first, and goes when it is empty.
    """

    def __init__(self, segments: Iterable[_Range] = (), earlier: Iterable[_Range] = ()) -> None:
        """segments: address and bytes of those that are there; what is new comes below them.
        earlier: those that were there once, which say how large the chunks of these are.
        """
        self._chunks: list[tuple[_Range, list[_Range]]] = []  # the newest first
        bottom, there = _TOP, sorted(segments)
        for chunk in reversed(find_chunks({*there, *earlier})):
            here = [one for one in there if chunk.start <= one[0] < chunk.end]
            if not here:  # it went with its last segment
                continue
            free = [(chunk.start, chunk.end)]
            for address, size in here:
                start, end = free.pop()
                free += [(start, address)] if start < address else []
                free += [(address + size, end)]
            free = [(start, end) for start, end in free if start < end]
            self._chunks.insert(0, ((chunk.start, chunk.end), free))
            bottom = chunk.start
        self._unmapped = [(CHUNK_BYTES, bottom)]

    def take(self, size: int) -> int:
        for _, free in self._chunks:
            address = _take_lowest(free, size)
            if address is not None:
                return address
        length = -(-size // CHUNK_BYTES) * CHUNK_BYTES
        gap = max(gap for gap in self._unmapped if gap[1] - gap[0] >= length)
        self._unmapped.remove(gap)
        start = gap[1] - length
        if gap[0] < start:
            _add(self._unmapped, (gap[0], start))
        rest = [(start + size, start + length)] if size < length else []
        self._chunks.insert(0, ((start, start + length), rest))
        return start

    def give_back(self, address: int, size: int) -> None:
        (place,) = [
            n for n, (chunk, _) in enumerate(self._chunks) if chunk[0] <= address < chunk[1]
        ]
        chunk, free = self._chunks[place]
        _add(free, (address, address + size))
        if free == [chunk]:
            del self._chunks[place]
            _add(self._unmapped, chunk)


POLICIES = {Platform.LINUX: LinuxAddresses, Platform.WINDOWS: WindowsAddresses}


def _take_lowest(free: list[_Range], size: int) -> int | None:
    for place, (start, end) in enumerate(free):
        if end - start >= size:
            free[place : place + 1] = [(start + size, end)] if end - start > size else []
            return start
    return None


def _add(free: list[_Range], new: _Range) -> None:
    """A range among others, joined to its neighbours."""
    insort(free, new)
    joined: list[_Range] = []
    for start, end in free:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    free[:] = joined
