"""The least memory that the blocks of a trace need if the allocator could choose any addresses.

There are two figures to compare the settings of the allocator with. The lower bound is the peak of
live memory. In a packing, every block has a fixed address and live blocks never overlap. No setting
guarantees either figure. The optimal packing is NP-hard (dynamic storage allocation, Garey and
Johnson 1979, SR2), so heuristics search for a good one:

    best fit          in the order of the events, the smallest hole that is large enough
    first fit         in the order of the events, the lowest such hole
    largest first     with all lifetimes known: the largest block first, at the lowest address that
                      is free during its lifetime (greedy by size, Pisarchyk and Lee 2020,
                      arXiv:2001.03288)
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from ullage.ground.protocol.plain import As
from ullage.log.blocks import sum_live
from ullage.log.snapshot import Int64Array

# First fit looks at every hole, and largest first at every block. Long traces leave them out.
_MAX_FIRST_FIT = 100_000
_MAX_LARGEST_FIRST = 8_000


@dataclass(frozen=True, slots=True)
class Spans:
    """Blocks with their lifetimes: [birth, death) in events."""

    size_bytes: Int64Array
    birth: Int64Array
    death: Int64Array

    def __len__(self) -> int:
        return len(self.size_bytes)


@dataclass(frozen=True, slots=True)
class Packing:
    """The size of a packing, and the heuristic that found it."""

    size_bytes: Annotated[int, As("bytes")]
    method: str


def lower_bound(spans: Spans) -> int:
    """The peak of live bytes."""
    last = int(spans.death.max(initial=0))
    return int(sum_live(spans.birth, spans.death, spans.size_bytes, last).max())


def find_packing(spans: Spans) -> Packing:
    """The smallest of the packings that the heuristics find."""
    least = lower_bound(spans)
    best = _measure(spans, place_in_order(spans, is_first_fit=False), "best fit")
    if best.size_bytes > least and len(spans) <= _MAX_FIRST_FIT:
        layout = _measure(spans, place_in_order(spans, is_first_fit=True), "first fit")
        best = min(best, layout, key=_size)
    if best.size_bytes > least and len(spans) <= _MAX_LARGEST_FIRST:
        layout = _measure(spans, place_largest_first(spans), "largest first")
        best = min(best, layout, key=_size)
    return best


def _size(packing: Packing) -> int:
    return packing.size_bytes


def _measure(spans: Spans, begins: Int64Array, method: str) -> Packing:
    return Packing(int((begins + spans.size_bytes).max(initial=0)), method)


def place_in_order(spans: Spans, *, is_first_fit: bool) -> Int64Array:
    """The address of each block if the blocks are placed in the order of their births."""
    # Deaths come before births of the same event.
    times = np.concatenate([2 * spans.birth + 1, 2 * spans.death])
    numbers = np.tile(np.arange(len(spans)), 2)
    is_birth = np.repeat([True, False], len(spans))
    order = np.argsort(times, kind="stable")
    sizes = spans.size_bytes.tolist()
    begins = [0] * len(sizes)
    holes = _Holes(is_first_fit=is_first_fit)
    for number, born in zip(numbers[order].tolist(), is_birth[order].tolist(), strict=True):
        if born:
            begins[number] = holes.take(sizes[number])
        else:
            holes.give(begins[number], sizes[number])
    return np.array(begins, dtype=np.int64)


class _Holes:
    """The free ranges below the highest address that was ever in use."""

    def __init__(self, *, is_first_fit: bool) -> None:
        self._top_bytes = 0
        self._is_first_fit = is_first_fit
        # In the order of search: (begin, size) for first fit, (size, begin) for best fit.
        self._holes: list[tuple[int, int]] = []
        self._size_at: dict[int, int] = {}
        self._begin_of: dict[int, int] = {}

    def take(self, size: int) -> int:
        """Allocates a range of that size, and returns its address."""
        hole = self._find(size)
        if hole is None:
            # A hole at the very top becomes part of the new range.
            begin = self._begin_of.get(self._top_bytes, self._top_bytes)
            if begin < self._top_bytes:
                self._remove(begin)
            self._top_bytes = begin + size
            return begin
        begin, length = hole
        self._remove(begin)
        if length > size:
            self._add(begin + size, length - size)
        return begin

    def give(self, begin: int, size: int) -> None:
        """Frees a range, and merges it with the adjacent holes."""
        end = begin + size
        before = self._begin_of.get(begin)
        if before is not None:
            self._remove(before)
            begin = before
        behind = self._size_at.get(end)
        if behind is not None:
            self._remove(end)
            end += behind
        self._add(begin, end - begin)

    def _find(self, size: int) -> tuple[int, int] | None:
        if self._is_first_fit:
            return next((hole for hole in self._holes if hole[1] >= size), None)
        at = bisect_left(self._holes, (size, 0))
        if at == len(self._holes):
            return None
        length, begin = self._holes[at]
        return begin, length

    def _add(self, begin: int, size: int) -> None:
        insort(self._holes, (begin, size) if self._is_first_fit else (size, begin))
        self._size_at[begin] = size
        self._begin_of[begin + size] = begin

    def _remove(self, begin: int) -> None:
        size = self._size_at.pop(begin)
        del self._begin_of[begin + size]
        key = (begin, size) if self._is_first_fit else (size, begin)
        del self._holes[bisect_left(self._holes, key)]


def place_largest_first(spans: Spans) -> Int64Array:
    """The address of each block if the largest is placed first, each at the lowest free address."""
    order = np.argsort(-spans.size_bytes, kind="stable")
    begins = np.zeros(len(spans), dtype=np.int64)
    births, deaths = spans.birth[order], spans.death[order]
    sizes = spans.size_bytes[order]
    placed = np.zeros(len(spans), dtype=np.int64)
    for at, number in enumerate(order.tolist()):
        beside = np.flatnonzero((births[:at] < deaths[at]) & (births[at] < deaths[:at]))
        placed[at] = _lowest_gap(placed[beside], sizes[beside], int(sizes[at]))
        begins[number] = placed[at]
    return begins


def _lowest_gap(begins: Int64Array, sizes: Int64Array, size: int) -> int:
    """The lowest address at which `size` bytes are free between or above these ranges."""
    if not len(begins):
        return 0
    order = np.argsort(begins)
    starts = begins[order]
    # The highest end of the ranges that begin no later.
    ends = np.maximum.accumulate(starts + sizes[order])
    gaps = starts - np.insert(ends[:-1], 0, 0)
    wide = np.flatnonzero(gaps >= size)
    if not len(wide):
        return int(ends[-1])
    first = int(wide[0])
    return int(ends[first - 1]) if first else 0
