"""A file of named columns.

It has 8 bytes that say what it is, the length of the header and its CRC-32, the header in JSON, and
what that lists: some bytes of the writer's, then the columns in chunks (see `packing`). A length is
believed only as far as the file goes, and as far as a file of its size can go.

    write_columns(file, {"address": addresses}, b"and so on")
    columns, rest = read_columns(file, {"address": "<i8"}.get)
"""

from __future__ import annotations

import json
import os
import stat
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, NamedTuple, TypeGuard, TypeVar

import numpy as np
from numpy.typing import NDArray

from ullage.ground.errors import SnapshotError
from ullage.ground.version import __version__

# Columns of whole numbers, packed: in chunks, each as differences or not, moved to begin at 0, cut
# to the bytes that are needed, the bytes of equal place put together, and deflated.

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


MAGIC = b"\x89ullage\n"
SCHEMA = "ullage.trace/1"
_PREFIX = struct.Struct("<8sQI")
_MAX_HEADER_BYTES = 64 << 20
# What a file may unpack to: at least this, or this multiple of its own size. A number counts as 8.
_MIN_BYTES, _MAX_GROWTH = 1 << 30, 128
_ROW_BYTES = 8
# A snapshot has some 60 columns; of fewer chunks than this, threads take longer to start.
_MANY_CHUNKS = 100
T = TypeVar("T")
U = TypeVar("U")
Columns = Mapping[str, NDArray[Any]]


def write_columns(file: BinaryIO, columns: Columns, rest: bytes) -> None:
    """Writes columns of integers, and bytes that mean something to the caller."""
    packed_rest = zlib.compress(rest, 1)
    for is_deflated in (True, False):
        packed = _pack_all(columns, is_deflated=is_deflated)
        size = sum(len(part) for chunks in packed.values() for _, part in chunks)
        # A column that says the same all over deflates to less than its reader believes.
        if _ROW_BYTES * sum(map(len, columns.values())) <= _limit(size):
            break
    header = {
        "schema": SCHEMA,
        "ullage": __version__,
        "rest": [len(packed_rest), len(rest)],
        "columns": {
            name: [len(column), *(chunk for chunk, _ in packed[name])]
            for name, column in columns.items()
        },
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    file.write(_PREFIX.pack(MAGIC, len(text), zlib.crc32(text)) + text + packed_rest)
    for chunks in packed.values():
        file.writelines(part for _, part in chunks)


def read_columns(
    file: BinaryIO, dtype_of: Callable[[str], str | None]
) -> tuple[dict[str, NDArray[Any]], bytes]:
    """Reads what `write_columns` wrote, without the columns that have no type here.

    Raises:
        SnapshotError: it is not such a file, of a newer ullage, damaged, or would unpack to more
            memory than one of its size does.
    """
    descriptor = file.fileno()
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise SnapshotError("it is not a regular file; an .ullage file is read in parts")
    header, offset = _read_header(descriptor, status.st_size)
    lengths = header.get("rest")
    rows = header.get("columns")
    if not _are_sizes(lengths, 2) or not isinstance(rows, dict):
        raise damaged("its header does not list what is in it")
    known = _parse_columns(rows, offset + lengths[0])
    end = max((column.end for column in known.values()), default=offset + lengths[0])
    if end != status.st_size:
        raise SnapshotError(
            f"it has {status.st_size} bytes where {end} are to be; it was cut off or changed"
        )
    num_bytes = lengths[1] + _ROW_BYTES * sum(column.num_rows for column in known.values())
    if num_bytes > _limit(status.st_size):
        raise SnapshotError(
            f"it unpacks to {num_bytes} bytes, more than any snapshot of its size does"
        )
    rest = inflate(os.pread(descriptor, lengths[0], offset), lengths[1])
    return _unpack_all(descriptor, known, dtype_of), rest


def damaged(what: str) -> SnapshotError:
    """The error of a file that says what ullage does not write."""
    return SnapshotError(f"it is damaged, or was not written by ullage: {what}")


def _limit(size: int) -> int:
    return max(_MIN_BYTES, _MAX_GROWTH * size)


def _pack_all(columns: Columns, *, is_deflated: bool) -> dict[str, list[tuple[Chunk, bytes]]]:
    def pack(part: tuple[str, int]) -> tuple[Chunk, bytes]:
        name, row = part
        return pack_chunk(columns[name][row : row + CHUNK_ROWS], is_deflated=is_deflated)

    parts = [
        (name, row) for name, column in columns.items() for row in range(0, len(column), CHUNK_ROWS)
    ]
    packed: dict[str, list[tuple[Chunk, bytes]]] = {name: [] for name in columns}
    for (name, _), chunk in zip(parts, _map(pack, parts), strict=True):
        packed[name].append(chunk)
    return packed


def _map(function: Callable[[T], U], parts: Sequence[T]) -> list[U]:
    """Maps a function over the parts, on all processors where there are many."""
    if len(parts) < _MANY_CHUNKS:
        return list(map(function, parts))
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        return list(pool.map(function, parts))


def _read_header(descriptor: int, size: int) -> tuple[dict[str, Any], int]:
    """The header, and where what follows begins."""
    prefix = os.pread(descriptor, _PREFIX.size, 0)
    if len(prefix) < _PREFIX.size or not prefix.startswith(MAGIC):
        raise SnapshotError("it is not a compact file of ullage")
    _, length, checksum = _PREFIX.unpack(prefix)
    if length > min(_MAX_HEADER_BYTES, size - _PREFIX.size):
        raise SnapshotError("it ends in the middle; it was cut off")
    text = os.pread(descriptor, length, _PREFIX.size)
    if zlib.crc32(text) != checksum:
        raise damaged("the sum over its header is another")
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        raise damaged("its header is not JSON") from None
    schema = header.get("schema") if isinstance(header, dict) else None
    if schema != SCHEMA:
        raise SnapshotError(
            f"its schema is {schema!r:.80}; ullage {__version__} reads {SCHEMA!r}: update ullage, "
            "or make the file anew from the snapshot"
        )
    return header, _PREFIX.size + length


@dataclass(frozen=True, slots=True)
class _Column:
    """The header of a column, and where its chunks begin and end."""

    num_rows: int
    chunks: tuple[Chunk, ...]
    begin: int

    @property
    def end(self) -> int:
        return self.begin + sum(chunk.num_bytes for chunk in self.chunks)


def _parse_columns(rows: Mapping[str, Any], begin: int) -> dict[str, _Column]:
    columns = {}
    for name, row in rows.items():
        if not isinstance(row, list) or not _are_sizes(row[:1], 1):
            raise damaged(f"column {name!r:.80} has no length")
        chunks = tuple(_parse_chunk(name, chunk) for chunk in row[1:])
        if len(chunks) != -(-row[0] // CHUNK_ROWS):
            raise damaged(f"column {name!r:.80} has {len(chunks)} chunks for {row[0]} rows")
        columns[name] = column = _Column(row[0], chunks, begin)
        begin = column.end
    return columns


def _parse_chunk(name: str, row: object) -> Chunk:
    if not isinstance(row, list) or len(row) != len(Chunk._fields):
        raise damaged(f"column {name!r:.80} has a chunk that is not described")
    num_bytes, width, low, is_delta, first = row
    if not (_are_sizes([num_bytes, width], 2) and 1 <= width <= 8 and type(is_delta) is bool):
        raise damaged(f"column {name!r:.80} has a chunk of no size")
    if not all(type(number) is int and abs(number) < 2**64 for number in (low, first)):
        raise damaged(f"column {name!r:.80} has a chunk that begins nowhere")
    return Chunk(num_bytes, width, low, is_delta, first)


def _are_sizes(sizes: object, count: int) -> TypeGuard[list[int]]:
    return (
        isinstance(sizes, list)
        and len(sizes) == count
        and all(type(size) is int and size >= 0 for size in sizes)
    )


def _unpack_all(
    descriptor: int, known: Mapping[str, _Column], dtype_of: Callable[[str], str | None]
) -> dict[str, NDArray[Any]]:
    columns: dict[str, NDArray[Any]] = {}
    parts: list[tuple[Chunk, int, NDArray[Any]]] = []
    for name, column in known.items():
        dtype, offset = dtype_of(name), column.begin
        if dtype is None:
            continue
        columns[name] = np.empty(column.num_rows, dtype=dtype)
        for number, chunk in enumerate(column.chunks):
            into = columns[name][number * CHUNK_ROWS : (number + 1) * CHUNK_ROWS]
            parts.append((chunk, offset, into))
            offset += chunk.num_bytes

    def unpack(part: tuple[Chunk, int, NDArray[Any]]) -> None:
        chunk, offset, into = part
        unpack_chunk(chunk, os.pread(descriptor, chunk.num_bytes, offset), into)

    _map(unpack, parts)
    return columns
