"""The symbols and libraries that a shared library needs and offers, read from its dynamic section
(ELF, 64-bit, little-endian).

Only the tables that the dynamic loader itself reads are touched: of half a gigabyte of library a
few megabytes. In a table with DT_GNU_HASH the undefined symbols come first, so a library's imports
are found without looking at its exports.

Source: System V ABI, chapters 4 and 5; the GNU hash section as glibc's dl-lookup.c reads it.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ullage.ground.errors import EnvironmentProblem

_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NEEDED, _DT_STRTAB, _DT_SYMTAB = 1, 5, 6
_DT_HASH, _DT_GNU_HASH = 4, 0x6FFFFEF5
_SYMBOL = struct.Struct("<IBBHQQ")  # name, info, other, section, value, size
_STB_LOCAL, _STB_WEAK = 0, 2


@dataclass(frozen=True, slots=True)
class DynamicTables:
    """Where the tables of a library lie in its file, and the names it needs."""

    needed: tuple[str, ...]
    strings: int
    symbols: int
    first_defined: int
    num_symbols: int


def read_needed(path: Path) -> tuple[str, ...]:
    """The sonames that a library asks the loader for."""
    with _mapped(path) as memory:
        return _read_tables(memory).needed


def read_imports(path: Path, prefixes: tuple[bytes, ...]) -> frozenset[str]:
    """The symbols that a library expects others to define and that begin with one of the prefixes.

    Weak ones are left out: their user copes when nobody defines them.
    """
    with _mapped(path) as memory:
        tables = _read_tables(memory)
        begin, end = tables.symbols, tables.symbols + tables.first_defined * _SYMBOL.size
        heads = _heads(prefixes)
        names = []
        for name, info, _other, section, _value, _size in _SYMBOL.iter_unpack(memory[begin:end]):
            at = tables.strings + name
            if section == 0 and info >> 4 != _STB_WEAK and memory[at : at + 2] in heads:
                names.append(memory[at : memory.find(b"\0", at)])
        return frozenset(
            name.decode("ascii", "replace") for name in names if name.startswith(prefixes)
        )


def read_exports(path: Path) -> frozenset[str]:
    """The symbols that a library defines for others."""
    with _mapped(path) as memory:
        tables = _read_tables(memory)
        begin, end = tables.symbols, tables.symbols + tables.num_symbols * _SYMBOL.size
        names = [
            memory[tables.strings + name : memory.find(b"\0", tables.strings + name)]
            for name, info, _other, section, _value, _size in _SYMBOL.iter_unpack(memory[begin:end])
            if section != 0 and info >> 4 != _STB_LOCAL
        ]
        return frozenset(name.decode("ascii", "replace") for name in names)


def _heads(prefixes: tuple[bytes, ...]) -> frozenset[bytes]:
    """The first two bytes of each prefix: nearly all names are told apart by them."""
    return frozenset(prefix[:2] for prefix in prefixes)


@contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap]:
    """The file as memory; a file that is not a library raises EnvironmentProblem."""
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as memory,
        ):
            yield memory
    except (struct.error, ValueError, IndexError, OverflowError):
        raise EnvironmentProblem(
            f"{str(path)!r} is not a 64-bit shared library of Linux, or is damaged; reinstall its "
            "package"
        ) from None
    except OSError as error:
        raise EnvironmentProblem(f"cannot read {str(path)!r}: {error.strerror or error}") from None


def _read_tables(memory: mmap.mmap) -> DynamicTables:
    if memory[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not ELF64, little-endian")
    loads, dynamic = _read_segments(memory)

    def file_offset(address: int) -> int:
        for start, offset, size in loads:
            if start <= address < start + size:
                return address - start + offset
        raise ValueError(f"address {address:#x} lies in no segment")

    entries = list(struct.iter_unpack("<qQ", memory[dynamic[0] : dynamic[0] + dynamic[1]]))
    tags = {tag: value for tag, value in entries if tag}
    if _DT_STRTAB not in tags or _DT_SYMTAB not in tags:
        raise ValueError("no symbol table")
    strings = file_offset(tags[_DT_STRTAB])
    needed = tuple(
        memory[strings + value : memory.find(b"\0", strings + value)].decode()
        for tag, value in entries
        if tag == _DT_NEEDED
    )
    first_defined, num_symbols = _count_symbols(memory, tags, file_offset)
    return DynamicTables(needed, strings, file_offset(tags[_DT_SYMTAB]), first_defined, num_symbols)


def _read_segments(memory: mmap.mmap) -> tuple[list[tuple[int, int, int]], tuple[int, int]]:
    """The loaded segments as (address, file offset, bytes in the file), and (file offset, bytes) of
    the dynamic section.
    """
    (program_headers,) = struct.unpack_from("<Q", memory, 32)
    entry_size, num_entries = struct.unpack_from("<HH", memory, 54)
    loads, dynamic = [], None
    for index in range(num_entries):
        kind, _flags, offset, address, _physical, size = struct.unpack_from(
            "<IIQQQQ", memory, program_headers + index * entry_size
        )
        if kind == _PT_LOAD:
            loads.append((address, offset, size))
        elif kind == _PT_DYNAMIC:
            dynamic = (offset, size)
    if dynamic is None:
        raise ValueError("no dynamic section")
    return loads, dynamic


def _count_symbols(
    memory: mmap.mmap, tags: Mapping[int, int], file_offset: Callable[[int], int]
) -> tuple[int, int]:
    """The index of the first symbol that may be defined, and the number of all: no table states the
    latter outright.
    """
    if _DT_GNU_HASH not in tags:
        if _DT_HASH not in tags:
            raise ValueError("no hash table")
        _num_buckets, num_chains = struct.unpack_from("<II", memory, file_offset(tags[_DT_HASH]))
        return num_chains, num_chains
    at = file_offset(tags[_DT_GNU_HASH])
    num_buckets, first_defined, num_bloom, _shift = struct.unpack_from("<IIII", memory, at)
    buckets_at = at + 16 + 8 * num_bloom
    last = max(struct.unpack_from(f"<{num_buckets}I", memory, buckets_at), default=0)
    if last < first_defined:
        return first_defined, first_defined
    chain_at = buckets_at + 4 * num_buckets
    # The last chain's end is the table's end; the lowest bit marks it.
    while not struct.unpack_from("<I", memory, chain_at + 4 * (last - first_defined))[0] & 1:
        last += 1
    return first_defined, last + 1
