"""How much depends on when asynchronous work ends.

A block that another stream has used is reused only when that stream's work is done, and no program
says when that is. The phantom's is done as late as can be: when the host has waited for it. The
other end, all of it done at once, is measured by a replay (whatif/completion.py) where the run kept
a snapshot; where it kept none, no less can be reserved than was allocated.

What a collective works on is allocated until the collective is seen to be done, unless the program
waits for it. At once done, such a block may go right after its last use, the other end of what is
allocated; that the program itself may have held it longer is not known, so this end is too low
rather than too high.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ullage.trace.lifetime import NEVER, Lifetimes, find_blocks, find_lifetimes
from ullage.trace.model import DeviceTotals, EventKind, Int64Array, Record
from ullage.trace.replay import BoolArray


@dataclass(frozen=True, slots=True)
class Completion:
    """Both ends of the peak of what a device's allocator held.

    Attributes:
        low_bytes, high_bytes: of it; equal where nothing depends on it.
        num_held: how many blocks were held back; None where it is not known.
        held_bytes: of them, at the peak; likewise.
        allocated_low_bytes: the lower end of the peak of what was allocated, whose upper end is
            that of the run; None: there is one end.
        num_kept: how many blocks were kept allocated for collectives.
    """

    low_bytes: int
    high_bytes: int
    num_held: int | None = 0
    held_bytes: int | None = 0
    allocated_low_bytes: int | None = None
    num_kept: int = 0


def find_completion(record: Record, totals: DeviceTotals) -> Completion:
    """Both ends of one device of a process."""
    late = totals.peak_reserved_bytes
    if not record.num_not_yet and not record.operands:
        return Completion(late, late)
    allocated, num_kept = _allocated_at_once(record, totals)
    ends: tuple[int, int, int | None, int | None] = min(late, allocated), late, None, None
    for candidate in record.at_once:
        if candidate.device != totals.index:
            continue
        other = candidate.reserved_bytes
        if other is None:
            other = allocated
        # Where free memory lies decides too, so that on a rare day less is held back and more held.
        ends = min(late, other), max(late, other), candidate.num_held, candidate.held_bytes
    return Completion(*ends, allocated if num_kept else None, num_kept)


def find_kept(record: Record, lifetimes: Lifetimes) -> BoolArray:
    """Which allocations were kept for a collective until it was seen to be done, or to the end."""
    was_kept = record.events.was_kept
    is_kept: BoolArray = np.zeros(len(lifetimes), dtype=bool)
    if was_kept is not None and len(was_kept):
        event = np.minimum(lifetimes.death - record.first_position - 1, len(was_kept) - 1)
        is_kept = (lifetimes.death != NEVER) & was_kept[event]
    if record.operands:
        places = np.array(record.operands, dtype=np.int64).T
        rows = find_blocks(lifetimes, *places)
        rows = rows[rows < len(lifetimes)]
        is_kept[rows[lifetimes.death[rows] == NEVER]] = True
    return is_kept


def _allocated_at_once(record: Record, totals: DeviceTotals) -> tuple[int, int]:
    """The peak of what is allocated with each block gone after its last use that was kept for a
    collective, and how many these are.
    """
    peak = totals.peak_allocated_bytes
    lifetimes = find_lifetimes(record.events, record.first_position)
    rows = np.flatnonzero(find_kept(record, lifetimes) & (lifetimes.device == totals.index))
    if not len(rows):
        return peak, 0
    late, first = _change(record, totals.index), record.first_position + 1
    birth = lifetimes.birth[rows] - first
    death = np.minimum(lifetimes.death[rows] - first, len(late))
    used = birth if record.last_use is None else record.last_use[np.maximum(birth, 0)]
    gone = np.clip(np.maximum(used - record.first_position, birth + 1), 0, death)
    early = np.append(late, 0)
    np.subtract.at(early, gone, lifetimes.size_bytes[rows])
    np.add.at(early, death, lifetimes.size_bytes[rows])
    lower = int(late.cumsum().max() - early[:-1].cumsum().max())
    return peak - max(0, lower), len(rows)


def _change(record: Record, device: int) -> Int64Array:
    """(num_events,) by how much each event changes what a device has allocated."""
    events = record.events
    is_block = (events.kind == EventKind.BLOCK) & (events.device == device)
    return np.where(is_block, events.size_bytes, 0).astype(np.int64)
