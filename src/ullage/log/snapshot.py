"""A memory snapshot of PyTorch as columns: the events of each device, the segments and blocks at
its end, and the stacks of frames that they name.

Of any version from 2.0 on, from a real GPU or the phantom. What a file does not have is an empty
column or a zero; what this module does not know is counted, never dropped in silence.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Int64Array = NDArray[np.int64]
UInt32Array = NDArray[np.uint32]
UInt8Array = NDArray[np.uint8]


class Action(enum.IntEnum):
    """The action of an event; torch's names in lower case."""

    ALLOC = 0
    FREE_REQUESTED = 1
    FREE_COMPLETED = 2
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5
    SEGMENT_UNMAP = 6
    SNAPSHOT = 7
    OOM = 8
    ANNOTATE = 9
    UNKNOWN = 255


class BlockState(enum.IntEnum):
    """The state of a block at the end. Pending: freed, while another stream may still use it."""

    INACTIVE = 0
    ACTIVE = 1
    PENDING = 2
    UNKNOWN = 255


@dataclass(frozen=True, slots=True)
class Frames:
    """Every different place in code once: file, line and function of each."""

    file: tuple[str, ...]
    line: Int64Array
    function: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stacks:
    """Every different stack once, innermost frame first; stack 0 is empty: none was recorded.

    Attributes:
        frames: what the numbers in `frame` mean.
        start: (num_stacks + 1,) where the frames of each stack begin in `frame`.
        frame: (num_frames,) numbers of frames.
    """

    frames: Frames
    start: Int64Array
    frame: UInt32Array

    def __len__(self) -> int:
        return len(self.start) - 1

    def of(self, stack: int) -> list[tuple[str, int, str]]:
        """(file, line, function) of a stack, innermost first."""
        numbers = self.frame[self.start[stack] : self.start[stack + 1]].tolist()
        known = self.frames
        return [(known.file[n], int(known.line[n]), known.function[n]) for n in numbers]


@dataclass(frozen=True, slots=True)
class EventTable:
    """The events of one device's allocator, oldest first; all columns have one entry an event.

    Attributes:
        action: of `Action`.
        address: of the block or segment; of an OOM the bytes that the device had free.
        size_bytes: of a block the requested size, not the rounded one; of a segment its own.
        stream: the CUDA stream's handle.
        time_us: microseconds since 1970; 0 where the file has none.
        stack: number of the stack.
        forward_stack: of an allocation in backward, the stack of its forward, where recorded.
        pool: number in `pools`.
        context: number in `texts` of the compile context or metadata; 0 is none.
    """

    action: UInt8Array
    address: Int64Array
    size_bytes: Int64Array
    stream: Int64Array
    time_us: Int64Array
    stack: UInt32Array
    forward_stack: UInt32Array
    pool: UInt32Array
    context: UInt32Array

    def __len__(self) -> int:
        return len(self.action)


@dataclass(frozen=True, slots=True)
class SegmentTable:
    """The segments at the end, in the order of the file; blocks of segment i are those from
    first_block[i] to first_block[i + 1].
    """

    device: Int64Array
    address: Int64Array
    total_bytes: Int64Array
    allocated_bytes: Int64Array
    active_bytes: Int64Array
    requested_bytes: Int64Array
    stream: Int64Array
    is_large: UInt8Array
    is_expandable: UInt8Array
    pool: UInt32Array
    stack: UInt32Array
    first_block: Int64Array

    def __len__(self) -> int:
        return len(self.address)


@dataclass(frozen=True, slots=True)
class BlockTable:
    """The blocks of all segments, in the order of their addresses within each."""

    segment: Int64Array
    address: Int64Array
    size_bytes: Int64Array
    requested_bytes: Int64Array
    state: UInt8Array
    stack: UInt32Array

    def __len__(self) -> int:
        return len(self.address)


@dataclass(frozen=True, slots=True)
class Annotation:
    """A moment that the program named: the begin or end of a range."""

    name: str
    stage: str
    time_us: int
    device: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A whole file.

    Attributes:
        events: of each device, by its index.
        segments, blocks: of device memory.
        host_segments, host_blocks: of pinned host memory, where it was recorded.
        host_events: likewise.
        pools: (owner, number) of each memory pool; pool 0 is the default one, (0, 0).
        texts: what context numbers mean; text 0 is empty.
        settings: of the allocator, as in the file; empty where it has none.
        annotations: in the order of the file.
        record: what ullage wrote into it, as plain values; None in a file of others.
        unknown: how often each key or action was met that this version does not know.
    """

    events: tuple[EventTable, ...]
    segments: SegmentTable
    blocks: BlockTable
    host_events: tuple[EventTable, ...]
    host_segments: SegmentTable
    host_blocks: BlockTable
    stacks: Stacks
    pools: tuple[tuple[int, int], ...]
    texts: tuple[str, ...]
    settings: Mapping[str, Any]
    annotations: tuple[Annotation, ...]
    record: Mapping[str, Any] | None
    unknown: Mapping[str, int]

    def events_of(self, device: int) -> EventTable:
        """The trace of a device; an empty one where the file has none."""
        return self.events[device] if 0 <= device < len(self.events) else no_events()


def as_posix(file: str) -> str:
    """The file of a frame with the slashes that are told apart by: those of Windows go."""
    return file if file.startswith("/") else file.replace("\\", "/")


def no_events() -> EventTable:
    """A trace in which nothing happens."""
    wide, narrow = np.empty(0, np.int64), np.empty(0, np.uint32)
    return EventTable(np.empty(0, np.uint8), wide, wide, wide, wide, narrow, narrow, narrow, narrow)
