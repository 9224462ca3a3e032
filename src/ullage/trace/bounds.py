"""The other ends of what a run assumes: what its device would have needed otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Peaks(NamedTuple):
    """The most that an allocator held, and that it had given out, in bytes."""

    reserved_bytes: int
    allocated_bytes: int


@dataclass(frozen=True, slots=True)
class AtOnce:
    """The bytes that a device would have needed had it done all its work at once.

    Attributes:
        num_held: how many blocks were held back because another stream had used them.
        held_bytes: of them, at the peak of what was reserved.
        reserved_bytes: the peak of what would have been; None where it could not be measured.
    """

    device: int
    num_held: int
    held_bytes: int
    reserved_bytes: int | None


@dataclass(frozen=True, slots=True)
class WarmCache:
    """The bytes that a device would have needed had Inductor's cache spared it timing kernels.

    Attributes:
        num_blocks: how many blocks the timing allocated.
        largest_bytes: the largest of them.
        allocated_bytes: the peak without them; None where it could not be measured.
        reserved_low_bytes, reserved_high_bytes: the peaks of what would have been reserved, with
            asynchronous work done late and at once; likewise.
    """

    device: int
    num_blocks: int
    largest_bytes: int
    allocated_bytes: int | None
    reserved_low_bytes: int | None
    reserved_high_bytes: int | None


@dataclass(frozen=True, slots=True)
class WorkspaceEnds:
    """The bytes that a device would have needed with closed libraries' workspaces at their bounds.

    Attributes:
        what: the names of the workspaces that were replayed, as in `AssumedBytes`.
        num_blocks: how many of them the libraries were handed, or could have been.
        allocated_low_bytes, allocated_high_bytes: the peaks of what would have been allocated;
            None where they could not be measured.
        reserved_low_bytes, reserved_high_bytes: those of what would have been reserved; likewise.
    """

    device: int
    what: frozenset[str]
    num_blocks: int
    allocated_low_bytes: int | None
    allocated_high_bytes: int | None
    reserved_low_bytes: int | None
    reserved_high_bytes: int | None
