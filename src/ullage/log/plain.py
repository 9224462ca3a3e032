"""Pickles of plain values, read by the native reader in csrc: no class is ever loaded, equal stacks
of frames are kept once, and what a hostile file can make it allocate is bounded.

    with read_plain(path) as file:
        segments = file.items(file.get(file.root, "segments"))
        addresses = file.column(segments, "address")
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ullage.ground.errors import SnapshotError
from ullage.ground.native.libraries import READER
from ullage.ground.printable import printable
from ullage.log.formats import NUM_BYTES, describe_format, describe_text

Value: TypeAlias = int
Values: TypeAlias = NDArray[np.uint64]

# What a file may take: at least this, or this multiple of its own size. A Python value counts
# as _VALUE_BYTES of it.
_MIN_BYTES, _MAX_GROWTH = 256 << 20, 8
_VALUE_BYTES = 64
_MAX_MESSAGE = 512
_NO_FILE = -1
_MAX_NAME = 100
_MAX_DEPTH = 32
_NO_SHAPE = 2**32 - 1
INT, CONST, TEXT, BYTES, LIST, DICT, WIDE, FLOAT = range(8)
_CONSTANTS = (None, False, True)
TRUE: Value = 2 << 3 | CONST
ABSENT: Value = 3 << 3 | CONST


@cache
def load_library() -> ctypes.CDLL:
    """The native part of this package.

    Raises:
        SnapshotError: it was not built.
    """
    try:
        library = ctypes.CDLL(str(READER))
    except OSError as error:
        raise SnapshotError(
            f"the native reader {READER.name} is missing ({error}); "
            "build it with `python -m ullage.ground.native.build`"
        ) from None
    pointer, value, size = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64
    signatures: dict[str, tuple[Any, Sequence[Any]]] = {
        "plain_read": (
            pointer, (ctypes.c_int, ctypes.c_char_p, size, size, ctypes.c_int, ctypes.c_char_p)
        ),
        "plain_free": (None, (pointer,)),
        "plain_root": (value, (pointer,)),
        "plain_used_bytes": (size, (pointer,)),
        "plain_text": (pointer, (pointer, value, ctypes.POINTER(size))),
        "plain_float": (ctypes.c_double, (pointer, value)),
        "plain_length": (size, (pointer, value)),
        "plain_is_tuple": (ctypes.c_int, (pointer, value)),
        "plain_items": (None, (pointer, value, pointer)),
        "plain_keys": (None, (pointer, value, pointer)),
        "plain_flatten": (size, (pointer, pointer, size, pointer, pointer)),
        "plain_item": (None, (pointer, pointer, size, ctypes.c_uint32, pointer)),
        "plain_column": (None, (pointer, pointer, size, ctypes.c_char_p, pointer)),
        "plain_spots": (size, (pointer, pointer, pointer, pointer)),
        "plain_num_dicts": (size, (pointer,)),
        "plain_stacks": (None, (pointer, pointer, size, pointer)),
        "plain_num_stacks": (size, (pointer,)),
        "plain_stack": (size, (pointer, ctypes.c_uint32, pointer)),
        "plain_shapes": (None, (pointer, pointer, size, pointer)),
        "plain_shape": (size, (pointer, ctypes.c_uint32, pointer)),
    }  # fmt: skip
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, list(arguments)
    return library


def read_plain(path: Path, *, keeps_spots: bool = False) -> PlainFile:
    """Reads a file; keeps_spots: also where its texts are (see `PlainFile.spots`).

    Raises:
        SnapshotError: it is missing, not a pickle, damaged, cut off, names a class, or unfolds to
            more memory than a snapshot of its size does.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise SnapshotError(f"cannot read {str(path)!r}: {error.strerror or error}") from None
    head = _first_bytes(descriptor)
    try:
        if other := describe_format(head):
            raise SnapshotError(other)
        limit = max(_MIN_BYTES, _MAX_GROWTH * os.fstat(descriptor).st_size)
        return PlainFile(descriptor, b"", limit, keeps_spots=keeps_spots)
    except SnapshotError as error:
        problem = describe_text(head, str(error))
        raise SnapshotError(f"cannot read {str(path)!r}: {problem}") from None
    finally:
        os.close(descriptor)


def _first_bytes(descriptor: int) -> bytes:
    try:
        return os.pread(descriptor, NUM_BYTES, 0)
    except OSError:  # a pipe, or nothing that can be read, as the reader will say
        return b""


def parse_plain(content: bytes) -> PlainFile:
    """Reads bytes; raises as `read_plain` does."""
    return PlainFile(_NO_FILE, content, max(_MIN_BYTES, _MAX_GROWTH * len(content)))


class PlainFile:
    """The values of a file. A value is a number that means something to this file alone."""

    def __init__(
        self, descriptor: int, content: bytes, limit: int, *, keeps_spots: bool = False
    ) -> None:
        self._library = load_library()
        message = ctypes.create_string_buffer(_MAX_MESSAGE)
        self._handle = self._library.plain_read(
            descriptor, content, len(content), limit, keeps_spots, message
        )
        if not self._handle:
            raise SnapshotError(message.value.decode(errors="replace"))
        self._texts: dict[Value, str] = {}
        self._bytes: dict[Value, bytes] = {}
        self._values_left = limit // _VALUE_BYTES
        self.root: Value = self._library.plain_root(self._handle)

    def __enter__(self) -> PlainFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives the memory back; no value may be read after that."""
        if self._handle:
            self._library.plain_free(self._handle)
            self._handle = 0

    @property
    def used_bytes(self) -> int:
        """The bytes of the values."""
        return int(self._library.plain_used_bytes(self._handle))

    def length(self, value: Value) -> int:
        """The number of items of a list, tuple or dict; 0 of anything else."""
        return int(self._library.plain_length(self._handle, value))

    def items(self, value: Value) -> Values:
        """The items of a list or tuple, or the values of a dict; none of anything else."""
        values = np.empty(self.length(value), dtype=np.uint64)
        if len(values):
            self._library.plain_items(self._handle, value, values.ctypes.data)
        return values

    def keys(self, value: Value) -> Values:
        """The keys of a dict, in the order of its items."""
        pairs = np.empty(self.length(value) if value & 7 == DICT else 0, dtype=np.uint64)
        if len(pairs):
            self._library.plain_keys(self._handle, value, pairs.ctypes.data)
        return pairs

    def get(self, value: Value, key: str) -> Value:
        """The value of a dict under a key; ABSENT where it has nothing, or is not a dict."""
        for name, item in zip(self.keys(value).tolist(), self.items(value).tolist(), strict=False):
            if name & 7 == TEXT and self.text(name) == key:
                return int(item)
        return ABSENT

    def text(self, value: Value) -> str:
        """A text, or bytes as text; what is not UTF-8 in it is replaced."""
        if value not in self._texts:
            self._texts[value] = self.raw(value).decode(errors="replace")
        return self._texts[value]

    def raw(self, value: Value) -> bytes:
        """The bytes of a text or of bytes."""
        if value not in self._bytes:
            length = ctypes.c_uint64()
            at = self._library.plain_text(self._handle, value, ctypes.byref(length))
            self._bytes[value] = ctypes.string_at(at, length.value)
        return self._bytes[value]

    def flatten(self, column: Values) -> tuple[Values, NDArray[np.int64]]:
        """The items of all lists of a column in one, and where those of each begin: one entry more
        than there are lists. What is not a list has no items.

        Raises:
            SnapshotError: these are more than the file has dicts, since lists are in it repeatedly.
        """
        starts = np.empty(len(column) + 1, dtype=np.int64)
        arguments = (self._handle, column.ctypes.data, len(column), starts.ctypes.data)
        starts[-1] = length = self._library.plain_flatten(*arguments, None)
        if length > self._library.plain_num_dicts(self._handle):
            raise SnapshotError(f"it has {length} rows by referring to the same ones repeatedly")
        items = np.empty(length, dtype=np.uint64)
        self._library.plain_flatten(*arguments, items.ctypes.data)
        return items, starts

    def item(self, column: Values, number: int) -> Values:
        """The item with a number, from 0, of each list of a column; ABSENT where it has none."""
        values = np.empty(len(column), dtype=np.uint64)
        self._library.plain_item(
            self._handle, column.ctypes.data, len(column), number, values.ctypes.data
        )
        return values

    def column(self, dicts: Values, key: str) -> Values:
        """The value of each dict of a column under a key; ABSENT where it has nothing."""
        values = np.empty(len(dicts), dtype=np.uint64)
        self._library.plain_column(
            self._handle, dicts.ctypes.data, len(dicts), key.encode(), values.ctypes.data
        )
        return values

    def stacks_of(self, column: Values) -> NDArray[np.uint32]:
        """The number of the stack that each value of a column is, from 1; 0 where it is none."""
        numbers = np.empty(len(column), dtype=np.uint32)
        self._library.plain_stacks(
            self._handle, column.ctypes.data, len(column), numbers.ctypes.data
        )
        return numbers

    @property
    def num_stacks(self) -> int:
        """The number of stacks; they are numbered from 1."""
        return int(self._library.plain_num_stacks(self._handle))

    def stack(self, number: int) -> Values:
        """The dicts of a stack."""
        length = self._library.plain_stack(self._handle, number, None)
        values = np.empty(length, dtype=np.uint64)
        if length:
            self._library.plain_stack(self._handle, number, values.ctypes.data)
        return values

    def spots(self) -> tuple[Values, Values, Values]:
        """Where in the file each text is written, opcode and all: where it begins, where it ends,
        and which it is; a frame of protocol 4 as ABSENT. Without keeps_spots there are none.
        """
        length = self._library.plain_spots(self._handle, None, None, None)
        columns = tuple(np.empty(length, dtype=np.uint64) for _ in range(3))
        self._library.plain_spots(self._handle, *(column.ctypes.data for column in columns))
        return columns[0], columns[1], columns[2]

    def count_keys(self, dicts: Values) -> dict[str, int]:
        """Counts how many of the dicts of a column have each key."""
        shapes = np.empty(len(dicts), dtype=np.uint32)
        self._library.plain_shapes(self._handle, dicts.ctypes.data, len(dicts), shapes.ctypes.data)
        counts: dict[str, int] = {}
        for shape, count in zip(*np.unique(shapes, return_counts=True), strict=True):
            if shape == _NO_SHAPE:
                continue
            keys = np.empty(self._library.plain_shape(self._handle, shape, None), dtype=np.uint64)
            if len(keys):
                self._library.plain_shape(self._handle, shape, keys.ctypes.data)
            for key in keys.tolist():
                name = self.name(key)
                counts[name] = counts.get(name, 0) + int(count)
        return counts

    def name(self, key: Value) -> str:
        """A key as it is shown to people."""
        text = printable(self.text(key)) if key & 7 == TEXT else repr(self.python(key))
        return text if len(text) <= _MAX_NAME else f"{text[:_MAX_NAME]}..."

    def python(self, value: Value, depth: int = _MAX_DEPTH) -> Any:  # noqa: ANN401 - what it holds
        """A value of Python: for the small parts of a file.

        Raises:
            SnapshotError: it is nested deeper than anything in a snapshot, or unfolds to more.
        """
        if depth == 0:
            raise SnapshotError(f"it nests values more than {_MAX_DEPTH} deep")
        self._values_left -= 1
        if self._values_left < 0:
            raise SnapshotError("it unfolds to more values than any snapshot of its size has")
        kind = value & 7
        if kind == INT:
            return value >> 3 if value < 1 << 63 else (value >> 3) - (1 << 61)
        if kind == CONST:
            return _CONSTANTS[value >> 3] if value != ABSENT else None
        if kind == TEXT:
            return self.text(value)
        if kind == BYTES:
            return self.raw(value)
        if kind in (WIDE, FLOAT):
            number = float(self._library.plain_float(self._handle, value))
            return int(number) if kind == WIDE else number
        items = [self.python(item, depth - 1) for item in self.items(value).tolist()]
        if kind == DICT:
            keys = [self.python(key, depth - 1) for key in self.keys(value).tolist()]
            return dict(zip(keys, items, strict=True))
        return tuple(items) if self._library.plain_is_tuple(self._handle, value) else items


def integers(column: Values, fallback: int = 0) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The whole numbers of a column, and where there are any; `fallback` elsewhere."""
    is_integer = (column & np.uint64(7)) == INT
    numbers = column.view(np.int64) >> 3
    return np.where(is_integer, numbers, fallback), is_integer
