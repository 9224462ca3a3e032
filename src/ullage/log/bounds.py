"""The other ends of what a run assumes: what its device would have needed otherwise."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple


class Peaks(NamedTuple):
    """The most that an allocator held, and that it had given out, in bytes."""

    reserved_bytes: int
    allocated_bytes: int


class Otherwise(enum.Enum):
    """The difference of a replay of the requests of a run."""

    COMPLETION = enum.auto()  # all work is done at once
    TUNING = enum.auto()  # Inductor's cache spares it the timing of kernels
    ADDRESSES = enum.auto()  # they come in the order of the other system
    WORKSPACES = enum.auto()  # those of closed libraries are at their bounds


@dataclass(frozen=True, slots=True)
class OtherPeaks:
    """The memory that a device would have taken otherwise.

    Attributes:
        what: is otherwise.
        device: its index.
        peaks: of the replays; empty where they do not come to what was recorded.
        num_blocks: that depend on it: held back because another stream had used them, allocated by
            the timing, or workspaces that libraries were handed, or could have been.
        block_bytes: of those held back at the peak together; the largest of the timing.
        names: of the workspaces that were replayed, as in `Assumption`.
    """

    what: Otherwise
    device: int
    peaks: tuple[Peaks, ...]
    num_blocks: int = 0
    block_bytes: int = 0
    names: frozenset[str] = frozenset()
