"""The store of a rank that has no peers: every other rank has written to it already what this one
would write.

It stands where a program, or init_process_group, makes a TCPStore or a FileStore, and opens neither
a port nor a file. Nothing waits: what nobody has written yet is answered as if the others had.

    store = LoneStore(world_size=8)
    store.set("address_0", "here")
    store.get("address_5")              # b"here": as rank 5 would have written
    store.add("arrived", 1)             # 8: the others have arrived too
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta

from torch.distributed import Store

_NUMBER = re.compile(r"\d+")
# C++ holds a store by what does not keep its Python half alive.
_stores: list[Store] = []


class LoneStore(Store):  # type: ignore[misc]
    """A key-value store in this process's memory.

    Args:
        rank: of this process.
        world_size: how many ranks write to the store.
        on_unknown: called with a key that is read and that only another rank could write.
    """

    def __init__(
        self, rank: int, world_size: int, on_unknown: Callable[[str], None] = lambda _key: None
    ) -> None:
        super().__init__()
        _stores.append(self)
        self._rank = rank
        self._world_size = world_size
        self._on_unknown = on_unknown
        self._lock = threading.Lock()
        self._values: dict[str, bytes] = {}

    def set(self, key: str, value: str | bytes) -> None:
        """Writes a value."""
        with self._lock:
            self._values[key] = _as_bytes(value)

    def get(self, key: str) -> bytes:
        """The value of a key; of another rank's key, what this rank wrote under its own; else
        nothing, which is noted.
        """
        with self._lock:
            value = self._values.get(key)
            if value is None:
                value = next(filter(None, map(self._values.get, self._own_keys(key))), None)
        if value is None:
            self._on_unknown(key)
        return value or b""

    def _own_keys(self, key: str) -> list[str]:
        """The key with each of its numbers in turn replaced by this rank."""
        return [
            f"{key[: match.start()]}{self._rank}{key[match.end() :]}"
            for match in _NUMBER.finditer(key)
        ]

    def add(self, key: str, amount: int) -> int:
        """Adds to a counter for every rank; returns what it is then."""
        with self._lock:
            total = int(self._values.get(key, b"0")) + amount * self._world_size
            self._values[key] = str(total).encode()
            return total

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Writes `desired` where the key holds `expected`, or is new and nothing is expected."""
        with self._lock:
            value = self._values.get(key, b"")
            if value == _as_bytes(expected):
                value = self._values[key] = _as_bytes(desired)
            return value

    def append(self, key: str, value: str | bytes) -> None:
        """Adds to the end of a value."""
        with self._lock:
            self._values[key] = self._values.get(key, b"") + _as_bytes(value)

    def check(self, keys: Sequence[str]) -> bool:
        """True if this rank has written all of the keys."""
        with self._lock:
            return all(key in self._values for key in keys)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Returns at once: the others have written theirs."""

    def delete_key(self, key: str) -> bool:
        """Forgets a key; returns whether it was there."""
        with self._lock:
            return self._values.pop(key, None) is not None

    def num_keys(self) -> int:
        """The number of keys."""
        with self._lock:
            return len(self._values)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values of several keys."""
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Writes several values."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def has_extended_api(self) -> bool:
        """append, multi_get and multi_set are there."""
        return True

    def clone(self) -> LoneStore:
        """Another handle to the same values."""
        return self

    # The names by which torch's own C++ calls them, through a PrefixStore.
    getNumKeys = num_keys
    deleteKey = delete_key


def _as_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
