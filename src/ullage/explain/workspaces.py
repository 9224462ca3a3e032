"""How much depends on the scratch memory of closed libraries, whose sizes follow a model.

Where the run kept a snapshot, both ends of the peaks were measured by a replay
(explain/whatif/workspaces.py). Elsewhere, and of what the replay leaves out, the bounds of the most
uncertain workspace are known alone; such memory lives for one operation.
"""

from __future__ import annotations

from dataclasses import dataclass

from ullage.log.assumptions import AssumptionKind
from ullage.log.bounds import Otherwise
from ullage.log.model import DeviceTotals, Record

# Another algorithm needs less, so one whose workspace cannot be had is not taken
# (players/phantom/csrc/answers/cudnn_workspace.c).
_CONVOLUTION = "cuDNN convolution"


@dataclass(frozen=True, slots=True)
class Workspaces:
    """Both ends of what a device's allocator holds.

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
