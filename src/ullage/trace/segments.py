"""The reserved ranges of a snapshot over time."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ullage.trace.snapshot import Action, Int64Array, Snapshot


@dataclass(frozen=True, slots=True)
class SegmentLives:
    """Every range that was reserved, as it came and went: `SegmentTable` over time."""

    address: Int64Array
    size_bytes: Int64Array
    birth: Int64Array
    death: Int64Array

    def __len__(self) -> int:
        return len(self.address)


def find_segments(snapshot: Snapshot, device: int, found: list[str]) -> SegmentLives:
    """The reserved ranges of a device over time, backwards from those at the end; contradictions
    are added to `found`.
    """
    table, events = snapshot.segments, snapshot.events_of(device)
    here = table.device == device
    end = len(events)
    living = _Ranges()
    for begin, size in zip(
        table.address[here].tolist(), table.total_bytes[here].tolist(), strict=True
    ):
        living.add(begin, size, end)
    rows: list[tuple[int, int, int, int]] = []
    missing: list[tuple[int, int]] = []
    numbers = np.flatnonzero(np.isin(events.action, (*_COMES, *_GOES)))[::-1]
    for number, is_gone, address, size in zip(
        numbers.tolist(),
        np.isin(events.action[numbers], _GOES).tolist(),
        events.address[numbers].tolist(),
        events.size_bytes[numbers].tolist(),
        strict=True,
    ):
        if is_gone:
            living.add(address, size, number)
            continue
        parts = living.cut_out(address, size)
        if sum(length for _, length, _ in parts) == size:
            rows += [(begin, length, number, death) for begin, length, death in parts]
        else:
            missing.append((address, size))
    if missing:
        address, size = missing[-1]
        found.append(
            f"{len(missing)} segments come and are not there later, such as that of {size} bytes "
            f"at {address:#x}"
        )
    rows += [(begin, size, -1, death) for begin, size, death in living.all()]
    columns = np.array(sorted(rows, key=lambda row: row[2]), dtype=np.int64).reshape(-1, 4)
    return SegmentLives(*columns.T)


_COMES = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
_GOES = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)


class _Ranges:
    """Ranges that do not overlap, in the order of their addresses, and when each goes."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._rest: dict[int, tuple[int, int]] = {}  # size and death of each

    def add(self, begin: int, size: int, death: int) -> None:
        """Adds a range; it takes the place of one that begins where it does."""
        if begin not in self._rest:
            insort(self._begins, begin)
        self._rest[begin] = (size, death)

    def cut_out(self, address: int, size: int) -> list[tuple[int, int, int]]:
        """Takes a range out; (begin, size, death) of each of its parts that was there."""
        parts, end = [], address + size
        place = max(bisect_right(self._begins, address) - 1, 0)
        while place < len(self._begins) and self._begins[place] < end:
            begin = self._begins[place]
            length, death = self._rest[begin]
            low, high = max(begin, address), min(begin + length, end)
            if low >= high:
                place += 1
                continue
            del self._begins[place], self._rest[begin]
            if begin < low:
                self.add(begin, low - begin, death)
                place += 1
            if high < begin + length:
                self.add(high, begin + length - high, death)
            parts.append((low, high - low, death))
        return parts

    def all(self) -> Iterator[tuple[int, int, int]]:
        """(begin, size, death) of each."""
        return ((begin, *self._rest[begin]) for begin in self._begins)
