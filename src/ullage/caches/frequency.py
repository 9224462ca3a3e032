"""How often keys were asked for lately: a count-min sketch whose counts are halved now and then.

frequency = Frequency(1024)
frequency.add("key"), frequency.of("key")
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Final

_ROWS: Final = 4
_MOST: Final = 255
_MULTIPLIERS: Final = (
    0x9E3779B97F4A7C15,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0xD6E8FEB86659FD93,
)
_MASK: Final = 2**64 - 1
# So many uses for each cell, and all counts are halved: what was popular long ago fades.
_USES_OF_A_CELL: Final = 8


class Frequency:
    """Counts of uses; a count may be too high where keys share cells, and is never too low
    since the last halving.

    Source: Cormode and Muthukrishnan 2005, doi:10.1016/j.jalgor.2003.12.001; the halving is that of
    Einziger et al. 2017, doi:10.1145/3149371.
    """

    def __init__(self, cells: int) -> None:
        """cells: of each row, a power of two; one for each key that matters is enough."""
        self._bits = max(6, (cells - 1).bit_length())
        self._rows = [bytearray(1 << self._bits) for _ in range(_ROWS)]
        self._uses, self._period = 0, _USES_OF_A_CELL << self._bits

    def add(self, key: Hashable) -> None:
        """Notes a use."""
        for row, cell in self._cells(key):
            if row[cell] < _MOST:
                row[cell] += 1
        self._uses += 1
        if self._uses >= self._period:
            self._uses //= 2
            self._rows = [bytearray(count >> 1 for count in row) for row in self._rows]

    def of(self, key: Hashable) -> int:
        """The uses of a key, at most."""
        return min(row[cell] for row, cell in self._cells(key))

    def _cells(self, key: Hashable) -> Iterator[tuple[bytearray, int]]:
        mixed, shift = hash(key), 64 - self._bits
        for row, multiplier in zip(self._rows, _MULTIPLIERS, strict=True):
            mixed = (mixed ^ (mixed >> 29)) * multiplier & _MASK
            yield row, mixed >> shift
