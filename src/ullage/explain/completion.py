"""How much depends on when asynchronous work ends.

A block that another stream has used is reused only when that stream's work is done, and no program
says when that is. The phantom's is done as late as can be: when the host has waited for it. The
other end, all of it done at once, is measured by a replay (explain/whatif/completion.py) where the
run kept a snapshot; where it kept none, no less can be reserved than was allocated.

What a collective works on is allocated until the collective is seen to be done, unless the program
waits for it. At once done, such a block may go right after its last use, the other end of what is
allocated; that the program itself may have held it longer is not known, so this end is too low
rather than too high.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from ullage.explain.moments.levels import read_levels
from ullage.explain.moments.spikes import levels_without
from ullage.ground.protocol.plain import As, Mark
from ullage.log.blocks import Blocks, BoolArray, find_blocks, read_blocks
from ullage.log.bounds import Otherwise
from ullage.log.model import DeviceTotals, Record


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

    low_bytes: Annotated[int, Mark.NO_KEY]
    high_bytes: Annotated[int, Mark.NO_KEY]
    num_held: Annotated[int | None, As("num_held_blocks")] = 0
    held_bytes: Annotated[int | None, As("held_at_peak_bytes")] = 0
    allocated_low_bytes: Annotated[int | None, Mark.NO_KEY] = None
    num_kept: Annotated[int, Mark.NO_KEY] = 0


def find_completion(record: Record, totals: DeviceTotals) -> Completion:
    """Both ends of one device of a process."""
    late = totals.peak_reserved_bytes
    if not record.num_not_yet and not record.operands:
        return Completion(late, late)
    allocated, num_kept = _allocated_at_once(record, totals)
    ends: tuple[int, int, int | None, int | None] = min(late, allocated), late, None, None
    other = record.otherwise_on(totals.index, Otherwise.COMPLETION)
    if other is not None:
        once = other.peaks[0].reserved_bytes if other.peaks else allocated
        # Where free memory lies decides too, so that on a rare day less is held back and more held.
        ends = min(late, once), max(late, once), other.num_blocks, other.block_bytes
    return Completion(*ends, allocated if num_kept else None, num_kept)


def find_kept(record: Record, blocks: Blocks) -> BoolArray:
    """Which blocks were kept for a collective until it was seen to be done, or to the end."""
    is_kept: BoolArray = np.zeros(len(blocks), dtype=bool)
    if record.events.was_kept is not None:
        is_kept = np.append(record.events.was_kept, np.False_)[blocks.death]
    if record.operands:
        rows = find_blocks(blocks, *np.array(record.operands, dtype=np.int64).T)
        rows = rows[rows < len(blocks)]
        is_kept[rows[blocks.death[rows] == blocks.num_events]] = True
    return is_kept


def _allocated_at_once(record: Record, totals: DeviceTotals) -> tuple[int, int]:
    """The peak of what is allocated with each block gone after its last use that was kept for a
    collective, and how many these are.
    """
    peak, blocks = totals.peak_allocated_bytes, read_blocks(record)
    is_kept = find_kept(record, blocks) & (blocks.device == totals.index)
    if not is_kept.any():
        return peak, 0
    levels, gone = read_levels(record, blocks, totals.index), blocks.birth + 1
    if record.last_use is not None:
        used = record.last_use.astype(np.int64)[blocks.birth] - record.first_position
        gone = np.where(blocks.birth < 0, gone, np.maximum(used, gone))
    numbers = np.flatnonzero(is_kept)
    lowered = levels_without(blocks, levels, numbers, gone[numbers])
    lower = int(levels.allocated_bytes.max() - lowered.max())
    return peak - max(0, lower), len(numbers)
