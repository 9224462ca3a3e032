"""Which of many dicts have changed since one looked last, by CPython's version tags (PEP 509).

CPython gives a dict another tag whenever an entry is added, removed or exchanged. A function of C
reads the tags of all dicts in one call. Later versions of CPython have no tags: there each dict
counts as changed.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from ullage.ground.native.libraries import GUARD

_FIRST_CAPACITY = 1024


class Tags:
    """The tags of some dicts, each at a place of its own."""

    def __init__(self) -> None:
        self._library = _load()
        self._capacity = self._count = 0
        self._free: list[int] = []
        self._dicts: list[Any] = []
        self._pointers: Any = ()
        self._tags: Any = ()
        self._changed: Any = ()

    def add(self, mapping: Any) -> int:
        """Adds a dict, which is held; returns its place. It counts as changed once."""
        place = self._free.pop() if self._free else self._count
        if place == self._capacity:
            self._grow()
        if place == self._count:
            self._count += 1
            self._dicts.append(mapping)
        self._dicts[place] = mapping
        self._pointers[place], self._tags[place] = id(mapping), 0
        return place

    def remove(self, place: int) -> None:
        """Releases the dict at a place."""
        nothing: dict[Any, Any] = {}
        self._dicts[place] = nothing
        self._pointers[place] = id(nothing)
        self._free.append(place)

    def changed(self) -> list[int]:
        """The places of dicts that have changed since this was called last."""
        if self._library is None:
            return [*range(self._count)]
        count = self._library.ullage_changed_dicts(
            self._pointers, self._tags, ctypes.c_int64(self._count), self._changed
        )
        return list(self._changed[:count])

    def _grow(self) -> None:
        self._capacity = max(_FIRST_CAPACITY, 2 * self._capacity)
        for name, kind in (("_pointers", ctypes.c_void_p), ("_tags", ctypes.c_uint64)):
            array = (kind * self._capacity)()
            array[: self._count] = getattr(self, name)[: self._count]
            setattr(self, name, array)
        self._changed = (ctypes.c_int64 * self._capacity)()


@cache
def _load() -> Any:
    """ullage's library; None where it is missing, or dicts have no tags where it looks for them."""
    try:
        library = ctypes.PyDLL(str(GUARD))
        library.ullage_changed_dicts.restype = ctypes.c_int64
    except (OSError, AttributeError):
        return None
    return library if _has_tags(library) else None


def _has_tags(library: Any) -> bool:
    """True if each kind of change is seen, and nothing else."""

    class Owner:
        pass

    owner, plain = Owner(), {"a": 1, "b": 2}
    dicts = (vars(owner), plain)
    pointers, tags = (ctypes.c_void_p * 2)(*map(id, dicts)), (ctypes.c_uint64 * 2)()
    places = (ctypes.c_int64 * 2)()

    def look() -> int:
        return int(library.ullage_changed_dicts(pointers, tags, ctypes.c_int64(2), places))

    answers = [look(), look()]
    for change in (
        lambda: setattr(owner, "x", 1),
        lambda: setattr(owner, "x", 2),
        lambda: plain.update(a=3),
        lambda: plain.pop("a"),
        lambda: plain.clear(),
        lambda: delattr(owner, "x"),
    ):
        change()
        answers += [look(), look()]
    return answers == [2, 0] + 6 * [1, 0]
