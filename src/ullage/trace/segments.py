"""The reserved ranges of a snapshot over time."""

from __future__ import annotations

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
    here = np.flatnonzero(table.device == device)
    end = len(events)
    living = {int(table.address[i]): (int(table.total_bytes[i]), end) for i in here}
    rows: list[tuple[int, int, int, int]] = []
    kinds = (Action.SEGMENT_ALLOC, Action.SEGMENT_FREE, Action.SEGMENT_MAP, Action.SEGMENT_UNMAP)
    for number in np.flatnonzero(np.isin(events.action, kinds))[::-1].tolist():
        action = events.action[number]
        address, size = int(events.address[number]), int(events.size_bytes[number])
        if action in (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP):
            living[address] = (size, number)
            continue
        cut = _cut_out(living, address, size)
        if cut is None:
            found.append(f"a segment of {size} bytes comes at {address:#x} and is not there later")
        rows += [(begin, length, number, death) for begin, length, death in cut or ()]
    rows += [(begin, size, -1, death) for begin, (size, death) in living.items()]
    columns = np.array(sorted(rows, key=lambda row: row[2]), dtype=np.int64).reshape(-1, 4)
    return SegmentLives(*columns.T)


def _cut_out(
    living: dict[int, tuple[int, int]], address: int, size: int
) -> list[tuple[int, int, int]] | None:
    """Takes a range out of those that are there; (address, size, death) of each of its parts."""
    parts, end = [], address + size
    for begin, (length, death) in list(living.items()):
        low, high = max(begin, address), min(begin + length, end)
        if low >= high:
            continue
        del living[begin]
        if begin < low:
            living[begin] = (low - begin, death)
        if high < begin + length:
            living[high] = (begin + length - high, death)
        parts.append((low, high - low, death))
    return parts if sum(length for _, length, _ in parts) == size else None
