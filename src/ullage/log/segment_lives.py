"""The reserved ranges of a snapshot over time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ullage.log.snapshot import Action, Int64Array, Snapshot


@dataclass(frozen=True, slots=True)
class SegmentLives:
    """Every range that was reserved, as it came and went: `SegmentTable` over time."""

    address: Int64Array
    size_bytes: Int64Array
    birth: Int64Array
    death: Int64Array

    def __len__(self) -> int:
        return len(self.address)


def find_segments(snapshot: Snapshot, device: int, problems: list[str]) -> SegmentLives:
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
        problems.append(
            f"{len(missing)} segments come and are not there later, such as that of {size} bytes "
            f"at {address:#x}"
        )
    rows += [(begin, size, -1, death) for begin, size, death in living.all()]
    columns = np.array(sorted(rows, key=lambda row: row[2]), dtype=np.int64).reshape(-1, 4)
    return SegmentLives(*columns.T)


_COMES = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
_GOES = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)
_MAX_PART = 2000


class _Ranges:
    """Ranges that do not overlap, in the order of their addresses, and when each goes.

    The addresses are in a list of short lists, so that one of a million is found, added and taken
    out without the others being moved.
    """

    def __init__(self) -> None:
        self._parts: list[list[int]] = [[]]
        self._firsts: list[int] = [0]  # of each part; that of the first part is not looked at
        self._rest: dict[int, tuple[int, int]] = {}  # size and death of each

    def add(self, begin: int, size: int, death: int) -> None:
        """Adds a range; it takes the place of one that begins where it does."""
        if begin not in self._rest:
            number = self._part_of(begin)
            part = self._parts[number]
            insort(part, begin)
            self._firsts[number] = part[0]
            if len(part) > _MAX_PART:
                self._parts.insert(number + 1, part[_MAX_PART // 2 :])
                del part[_MAX_PART // 2 :]
                self._firsts.insert(number + 1, self._parts[number + 1][0])
        self._rest[begin] = (size, death)

    def cut_out(self, address: int, size: int) -> list[tuple[int, int, int]]:
        """Takes a range out; (begin, size, death) of each of its parts that was there."""
        parts, end = [], address + size
        for begin in self._between(address, end):
            length, death = self._rest[begin]
            low, high = max(begin, address), min(begin + length, end)
            if low >= high:
                continue
            self._remove(begin)
            if begin < low:
                self.add(begin, low - begin, death)
            if high < begin + length:
                self.add(high, begin + length - high, death)
            parts.append((low, high - low, death))
        return parts

    def all(self) -> Iterator[tuple[int, int, int]]:
        """(begin, size, death) of each."""
        return ((begin, *self._rest[begin]) for part in self._parts for begin in part)

    def _part_of(self, address: int) -> int:
        return max(bisect_right(self._firsts, address) - 1, 0)

    def _between(self, address: int, end: int) -> list[int]:
        """Where the ranges begin that may lie between two addresses."""
        number = self._part_of(address)
        place = max(bisect_right(self._parts[number], address) - 1, 0)
        begins: list[int] = []
        for part in self._parts[number:]:
            stop = bisect_left(part, end, place)
            begins += part[place:stop]
            if stop < len(part):
                break
            place = 0
        return begins

    def _remove(self, begin: int) -> None:
        number = self._part_of(begin)
        part = self._parts[number]
        del part[bisect_left(part, begin)], self._rest[begin]
        if part:
            self._firsts[number] = part[0]
        elif len(self._parts) > 1:
            del self._parts[number], self._firsts[number]
