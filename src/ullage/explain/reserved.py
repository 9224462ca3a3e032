"""Both ends of the peak of what a device's allocator held, over all that it depends on: the order
of addresses, the completion of asynchronous work, the timing of kernels, and workspaces. The run is
one end of each; the other was measured by a replay (explain/whatif) where it kept a snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from ullage.explain.moments.levels import read_levels
from ullage.explain.moments.spikes import levels_without
from ullage.ground.protocol.plain import As, Mark, figure
from ullage.log.assumptions import AssumptionKind
from ullage.log.blocks import Blocks, BoolArray, find_blocks, read_blocks
from ullage.log.bounds import Otherwise
from ullage.log.model import DeviceTotals, Record


@dataclass(frozen=True, slots=True)
class AddressEnds:
    """Both ends of the peaks of what a device's allocator held and had given out, in bytes; equal
    where nothing depends on the order, or where the other one was not measured.

    The allocator takes the lower of two free blocks of one size. The order is that of one system's
    driver as far as it is known (docs/results/truth.md); a replay under the other's shows what can
    depend on it (explain/whatif/other_ends.py).
    """

    low_bytes: int
    high_bytes: int
    allocated_low_bytes: int
    allocated_high_bytes: int

    @property
    def width_bytes(self) -> int:
        """Their distance."""
        return self.high_bytes - self.low_bytes


def find_address_ends(record: Record, totals: DeviceTotals) -> AddressEnds:
    """Both ends of one device of a process."""
    other = record.otherwise_on(totals.index, Otherwise.ADDRESSES)
    own = (totals.peak_reserved_bytes, totals.peak_allocated_bytes)
    reserved, allocated = zip(own, *(() if other is None else other.peaks), strict=True)
    return AddressEnds(min(reserved), max(reserved), min(allocated), max(allocated))


@dataclass(frozen=True, slots=True)
class Completion:
    """Both ends of the peak of what a device's allocator held, by when asynchronous work ends.

    A block that another stream has used is reused only when that stream's work is done, and no
    program says when that is. The phantom's is done as late as can be: when the host has waited for
    it. The other end, all of it done at once, is measured by a replay
    (explain/whatif/other_ends.py) where the run kept a snapshot; where it kept none, no less can be
    reserved than was allocated.

    What a collective works on is allocated until the collective is seen to be done, unless the
    program waits for it. At once done, such a block may go right after its last use, the other end
    of what is allocated; that the program itself may have held it longer is not known, so this end
    is too low rather than too high.

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


@dataclass(frozen=True, slots=True)
class Tuning:
    """Both ends of the peak of what a device's allocator held, by whether Inductor's cache is cold.

    Where it is, Inductor times its kernels before it first launches them, and what that allocates
    moves the peak of what is reserved, up or down. The run itself is the cold end. The warm end is
    measured by a replay (explain/whatif/other_ends.py) where the run kept a snapshot; where it kept
    none, no less can be reserved than was allocated.

    Attributes:
        low_bytes, high_bytes: of it; equal where nothing depends on it.
        num_blocks: how many blocks the timing of kernels allocated; None where it is not known.
        largest_bytes: the largest of them; likewise.
        allocated_low_bytes: the peak of what was allocated without them.
    """

    low_bytes: Annotated[int, Mark.NO_KEY]
    high_bytes: Annotated[int, Mark.NO_KEY]
    num_blocks: Annotated[int | None, As("num_timing_blocks")]
    largest_bytes: Annotated[int | None, Mark.NO_KEY]
    allocated_low_bytes: Annotated[int, Mark.NO_KEY]


def find_tuning(record: Record, totals: DeviceTotals) -> Tuning:
    """Both ends of one device of a process."""
    cold, allocated = totals.peak_reserved_bytes, totals.peak_allocated_bytes
    warm = record.otherwise_on(totals.index, Otherwise.TUNING)
    on_others = any(other.what is Otherwise.TUNING for other in record.otherwise)
    if not record.num_timed or (warm is None and on_others):
        return Tuning(cold, cold, 0, 0, allocated)
    if warm is None or not warm.peaks:
        return Tuning(min(cold, allocated), cold, None, None, allocated)
    ends = [cold, *(peaks.reserved_bytes for peaks in warm.peaks)]
    without = min(allocated, warm.peaks[0].allocated_bytes)
    return Tuning(min(ends), max(ends), warm.num_blocks, warm.block_bytes, without)


# Another algorithm needs less, so one whose workspace cannot be had is not taken
# (players/phantom/csrc/answers/cudnn_workspace.c).
_CONVOLUTION = "cuDNN convolution"


@dataclass(frozen=True, slots=True)
class Workspaces:
    """Both ends of what a device's allocator holds, by the scratch memory of closed libraries,
    whose sizes follow a model.

    Where the run kept a snapshot, both ends of the peaks were measured by a replay
    (explain/whatif/other_ends.py). Elsewhere, and of what the replay leaves out, the bounds of the
    most uncertain workspace are known alone; such memory lives for one operation.

    Attributes:
        num_blocks: how many workspaces were replayed; 0: the ends below are those of the run.
        allocated_low_bytes, allocated_high_bytes: the peak of what was allocated.
        reserved_low_bytes, reserved_high_bytes: that of what was reserved.
        less_bytes, more_bytes: how much less or more is needed, with what was not replayed.
        optional_bytes: how much more a convolution that was not replayed takes if there is room.
    """

    num_blocks: int
    allocated_low_bytes: int
    allocated_high_bytes: int
    reserved_low_bytes: int
    reserved_high_bytes: int
    less_bytes: int
    more_bytes: int
    optional_bytes: int


def find_workspaces(record: Record, totals: DeviceTotals) -> Workspaces:
    """Both ends of one device of a process."""
    allocated, reserved = totals.peak_allocated_bytes, totals.peak_reserved_bytes
    of_allocated, of_reserved, num_blocks, names = [allocated], [reserved], 0, frozenset[str]()
    other = record.otherwise_on(totals.index, Otherwise.WORKSPACES)
    if other is not None and other.peaks:
        of_allocated += [peaks.allocated_bytes for peaks in other.peaks]
        of_reserved += [peaks.reserved_bytes for peaks in other.peaks]
        num_blocks, names = other.num_blocks, other.names
    sizes = [row for row in record.basis if row.kind is AssumptionKind.WORKSPACE]
    rest = [row for row in sizes if row.what not in names]
    more = {"": 0, _CONVOLUTION: 0}
    for row in rest:
        kind = _CONVOLUTION if row.what.startswith(_CONVOLUTION) else ""
        more[kind] = max(more[kind], row.more_bytes)
    return Workspaces(
        num_blocks=num_blocks,
        allocated_low_bytes=min(of_allocated),
        allocated_high_bytes=max(of_allocated),
        reserved_low_bytes=min(of_reserved),
        reserved_high_bytes=max(of_reserved),
        less_bytes=max(reserved - min(of_reserved), *(row.less_bytes for row in rest), 0),
        more_bytes=max(more[""], max(of_reserved) - reserved),
        optional_bytes=more[_CONVOLUTION],
    )


@dataclass(frozen=True, slots=True)
class Reserved:
    """The influences on the peak: when asynchronous work ends, whether kernels are timed, the order
    of addresses, and the workspaces of closed libraries. The first two were measured by replays of
    the same order and the same workspaces, so the spreads of the others add to theirs.
    """

    allocated_bytes: Annotated[int, Mark.NO_KEY]
    peak_bytes: Annotated[int, Mark.NO_KEY]
    completion: Annotated[Completion, Mark.FLAT]
    tuning: Annotated[Tuning, Mark.FLAT]
    addresses: Annotated[AddressEnds, Mark.NO_KEY]
    workspaces: Annotated[Workspaces, Mark.NO_KEY]

    @figure
    def low_bytes(self) -> Annotated[int, As("peak_reserved_low_bytes")]:
        """The lower end."""
        below = self.peak_bytes - self.addresses.low_bytes
        below += self.peak_bytes - self.workspaces.reserved_low_bytes
        return max(self.completion.low_bytes - self.tuning_less_bytes - below, 0)

    @figure
    def high_bytes(self) -> Annotated[int, As("peak_reserved_high_bytes")]:
        """The upper end."""
        return self.answered_bytes + self.workspaces.reserved_high_bytes - self.peak_bytes

    @property
    def answered_bytes(self) -> int:
        """The upper end with the workspaces that were answered, which the verdict uses."""
        above = self.addresses.high_bytes - self.peak_bytes
        return max(self.completion.high_bytes, self.tuning.high_bytes) + above

    @property
    def completion_less_bytes(self) -> int:
        """The bytes that are saved if asynchronous work is done at once."""
        return max(self.completion.high_bytes, self.tuning.high_bytes) - self.completion.low_bytes

    @property
    def tuning_less_bytes(self) -> int:
        """The further bytes that are saved if Inductor's cache spares it the timing of kernels."""
        return max(self.completion.low_bytes - self.tuning.low_bytes, 0)

    @figure
    def allocated_low_bytes(self) -> Annotated[int, As("peak_allocated_low_bytes")]:
        """The lower end of the peak of what was allocated."""
        at_once, warm = self.completion.allocated_low_bytes, self.tuning.allocated_low_bytes
        low = warm if at_once is None else min(at_once, warm)
        below = self.allocated_bytes - self.workspaces.allocated_low_bytes
        below += self.allocated_bytes - self.addresses.allocated_low_bytes
        return max(low - below, 0)

    @figure
    def allocated_high_bytes(self) -> Annotated[int, As("peak_allocated_high_bytes")]:
        """Its upper end: that of the run, but for workspaces and the order of addresses."""
        above = self.addresses.allocated_high_bytes - self.allocated_bytes
        return self.workspaces.allocated_high_bytes + above


def find_reserved(record: Record, totals: DeviceTotals) -> Reserved:
    """Both ends of one device of a process."""
    return Reserved(
        totals.peak_allocated_bytes,
        totals.peak_reserved_bytes,
        find_completion(record, totals),
        find_tuning(record, totals),
        find_address_ends(record, totals),
        find_workspaces(record, totals),
    )
