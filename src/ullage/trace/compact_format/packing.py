"""Columns of whole numbers, packed: in chunks, each as differences or not, moved to begin at 0, cut
to the bytes that are needed, the bytes of equal place put together, and deflated.

    chunk, content = pack_chunk(numbers)
    unpack_chunk(chunk, content, into=np.empty(len(numbers), numbers.dtype))

A chunk stands alone, so that all processors pack and unpack; arithmetic is modulo 2^64, so that
nothing can overflow.
"""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ullage.errors import SnapshotError

CHUNK_ROWS = 1 << 18
# More costs several times as long for a fifth less.
_LEVEL = 1
_SAMPLE_ROWS = 1 << 14
_ALL_BITS = 2**64 - 1


class Chunk(NamedTuple):
    """How up to CHUNK_ROWS numbers are packed.

    Attributes:
        num_bytes: of the file.
        width: bytes of each number before they are deflated, 1 to 8.
        low: what was taken off each, so that the least is 0.
        is_delta: whether these are the differences to the number before.
        first: the number that the differences count from; 0 without them.
    """

    num_bytes: int
    width: int
    low: int
    is_delta: bool
    first: int


def pack_chunk(numbers: NDArray[Any], *, is_deflated: bool = True) -> tuple[Chunk, bytes]:
    """One chunk of a column, at least one number, of any integer type."""
    wide = numbers.astype("<i8").view("<u8")
    is_delta = _is_smaller_as_delta(wide[:_SAMPLE_ROWS])
    first = int(wide[0]) if is_delta else 0
    planes, low = _planes(_differences(wide) if is_delta else wide)
    content = zlib.compress(planes, _LEVEL if is_deflated else 0)
    return Chunk(len(content), len(planes) // len(wide), low, is_delta, first), content


def unpack_chunk(chunk: Chunk, content: bytes, into: NDArray[Any]) -> None:
    """Puts the numbers of a chunk where they belong; `into` says how many there are.

    Raises:
        SnapshotError: the content is damaged, or not as long as it has to be.
    """
    planes = np.frombuffer(inflate(content, len(into) * chunk.width), dtype=np.uint8)
    planes = planes.reshape(chunk.width, len(into))
    wide = np.zeros(len(into), dtype="<u8")
    places = wide.view(np.uint8).reshape(len(into), 8)
    for place in range(chunk.width):
        places[:, place] = planes[place]
    wide += np.uint64(chunk.low & _ALL_BITS)
    if chunk.is_delta:
        np.cumsum(wide, out=wide)
        wide += np.uint64(chunk.first & _ALL_BITS)
    into[:] = wide.view("<i8")


def inflate(content: bytes, num_bytes: int) -> bytes:
    """Exactly `num_bytes` bytes; never takes more memory than these.

    Raises:
        SnapshotError: there are more or fewer, or they are damaged.
    """
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(content, num_bytes)
        # What tells that it is whole may come after the last byte.
        rest = inflater.decompress(inflater.unconsumed_tail, 1) if not inflater.eof else b""
    except zlib.error as error:
        raise SnapshotError(f"it is damaged: {error}") from None
    if len(data) != num_bytes or rest or not inflater.eof or inflater.unused_data:
        raise SnapshotError(f"it is damaged: a part of it does not unpack to {num_bytes} bytes")
    return data


def _is_smaller_as_delta(sample: NDArray[np.uint64]) -> bool:
    plain, delta = (
        len(zlib.compress(_planes(numbers)[0], _LEVEL))
        for numbers in (sample, _differences(sample))
    )
    return delta < plain


def _differences(wide: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return np.diff(wide, prepend=wide[:1])


def _planes(wide: NDArray[np.uint64]) -> tuple[bytes, int]:
    """The lowest bytes of all numbers, then the next, as many as it takes; and what was taken off
    the numbers before.
    """
    low = int(wide.view("<i8").min())
    moved = wide - np.uint64(low & _ALL_BITS)
    width = max(1, (int(moved.max()).bit_length() + 7) // 8)
    return moved.view(np.uint8).reshape(len(wide), 8)[:, :width].T.tobytes(), low
