"""A cache with a budget in bytes that keeps what is worth most: uses x seconds saved / byte.

    cache = ullage.ValueCache(2 << 30)
    answer = cache.get(key)
    if answer is None:
        answer = compute(prompt)
        cache.put(key, answer, nbytes=len(answer), seconds=took)

An answer that took ten seconds and is a kilobyte stays before one that took a tenth of a second
and is a megabyte, however recently that was asked for. For frequent prompts' answers, embeddings of
passages, and anything else that costs seconds to make again; prefix caches stay the engines' own.

The order is that of GreedyDual-Size with frequency: what is evicted raises a floor, and what is
used or new starts from that floor, so that what nobody asks for any more sinks. Uses are
remembered of keys that are not there as well. An entry that ranks below one that would have to go
for it is refused, so that a single large one of little worth does not empty the cache.

Source: Cao and Irani 1997, Cost-aware WWW proxy caching algorithms; Cherkasova 1998, HPL-98-69R1;
the memory of uses is that of TinyLFU, doi:10.1145/3149371. docs/results/watch.md compares it
with LRU, LFU and TinyLFU.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from threading import Lock
from typing import Final, Generic, TypeVar

from ullage.ground.errors import SpecError

# How often keys were asked for lately: a count-min sketch whose counts are halved now and then.

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


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_CELLS: Final = 1 << 16
# A heap entry that was superseded stays until it comes up, or until there are so many.
_STALE_ENTRIES: Final = 64


@dataclass(frozen=True, slots=True)
class CacheCounts:
    """The counts of a cache.

    Attributes:
        entries: that it holds.
        bytes: of them.
        hits, misses: of get().
        saved_s: seconds that hits have saved.
        admitted, refused, evicted: entries that came, that ranked below what had to go, and that
            went.
    """

    entries: int
    bytes: int
    hits: int
    misses: int
    saved_s: float
    admitted: int
    refused: int
    evicted: int


@dataclass(frozen=True, slots=True)
class _Entry(Generic[V]):
    """A value, its size and worth, and the number of its place in the heap that counts."""

    value: V
    nbytes: int
    seconds: float
    number: int


class ValueCache(Generic[K, V]):
    """A thread-safe cache; the bytes of its entries never exceed the budget.

    Attributes:
        budget_bytes: the most that the entries may take together.
    """

    def __init__(self, budget_bytes: int, *, entry_bytes: int = 0, keys: int = _CELLS) -> None:
        """An empty cache.

        Args:
            budget_bytes: for all entries.
            entry_bytes: what each entry takes beside its value, such as its key.
            keys: keys whose uses are told apart; four bytes are taken for each.

        Raises:
            SpecError: a number is not possible.
        """
        if budget_bytes < 0 or entry_bytes < 0 or keys < 1:
            raise SpecError(
                f"budget_bytes={budget_bytes}, entry_bytes={entry_bytes}, keys={keys}: expected at "
                f"least 0, 0 and 1"
            )
        self.budget_bytes = budget_bytes
        self._entry_bytes = entry_bytes
        self._entries: dict[K, _Entry[V]] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._frequency = Frequency(keys)
        self._floor, self._number, self._bytes = 0.0, 0, 0
        self._hits = self._misses = self._admitted = self._refused = self._evicted = 0
        self._saved_s = 0.0
        self._lock = Lock()

    def get(self, key: K) -> V | None:
        """The value of a key; None where it is not there."""
        with self._lock:
            self._frequency.add(key)
            entry = self._entries.get(key)
            if entry is None:
                self._misses += 1
                return None
            self._hits += 1
            self._saved_s += entry.seconds
            self._rank(key, entry)
            return entry.value

    def put(self, key: K, value: V, *, nbytes: int, seconds: float) -> bool:
        """Offers a value; whether it is kept.

        Args:
            key: whose value it is; an older value of it goes in any case.
            value: not None.
            nbytes: its size.
            seconds: what it takes to make it again.

        Raises:
            SpecError: nbytes or seconds is below 0, or seconds is not a number.
        """
        if nbytes < 0 or not seconds >= 0:
            raise SpecError(f"nbytes={nbytes}, seconds={seconds}: expected at least 0 of both")
        with self._lock:
            if key in self._entries:
                self._remove(key)
            entry = _Entry(value, nbytes + self._entry_bytes, seconds, 0)
            if not self._make_room(key, entry):
                self._refused += 1
                return False
            self._bytes += entry.nbytes
            self._admitted += 1
            self._rank(key, entry)
            return True

    def discard(self, key: K) -> None:
        """Removes a key, where it is there."""
        with self._lock:
            if key in self._entries:
                self._remove(key)

    @property
    def counts(self) -> CacheCounts:
        """The counts so far."""
        with self._lock:
            return CacheCounts(
                len(self._entries), self._bytes, self._hits, self._misses, self._saved_s,
                self._admitted, self._refused, self._evicted,
            )  # fmt: skip

    def _worth(self, key: K, entry: _Entry[V]) -> float:
        """Seconds that its uses save, for each byte."""
        return max(1, self._frequency.of(key)) * entry.seconds / max(1, entry.nbytes)

    def _rank(self, key: K, entry: _Entry[V]) -> None:
        """Puts an entry into the heap anew, from the present floor."""
        self._number += 1
        self._entries[key] = replace(entry, number=self._number)
        heapq.heappush(self._heap, (self._floor + self._worth(key, entry), self._number, key))
        if len(self._heap) > 2 * len(self._entries) + _STALE_ENTRIES:
            self._heap = [row for row in self._heap if self._is_current(row)]
            heapq.heapify(self._heap)

    def _is_current(self, row: tuple[float, int, K]) -> bool:
        entry = self._entries.get(row[2])
        return entry is not None and entry.number == row[1]

    def _make_room(self, key: K, entry: _Entry[V]) -> bool:
        """Evicts the least worth until an entry fits; False, with all as before, where one of these
        ranks above the entry.
        """
        if entry.nbytes > self.budget_bytes:
            return False
        rank = self._floor + self._worth(key, entry)
        popped, free = [], self.budget_bytes - self._bytes
        while free < entry.nbytes:
            row = heapq.heappop(self._heap)
            if not self._is_current(row):
                continue
            popped.append(row)
            free += self._entries[row[2]].nbytes
            if row[0] > rank:
                self._spare(popped)
                return False
        for priority, _, victim in popped:
            self._floor = max(self._floor, priority)
            self._remove(victim)
            self._evicted += 1
        return True

    def _spare(self, rows: list[tuple[float, int, K]]) -> None:
        """Puts back what was to go. The floor rises to the least of it, so that what is used from
        now on comes before what only was.
        """
        for row in rows:
            heapq.heappush(self._heap, row)
        self._floor = max(self._floor, rows[0][0])

    def _remove(self, key: K) -> None:
        self._bytes -= self._entries.pop(key).nbytes
