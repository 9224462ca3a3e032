"""The rules of PyTorch's caching allocator, which are written in C: csrc/rules.h has sizes,
rounding and splitting, csrc/allocator.c decides, csrc/requests.c makes the requests of a program.

    settings = make_settings(is_expandable=True)
    play_requests(settings, sizes=sizes, streams=streams, ops=ops).peak_reserved_bytes
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from ullage.ground.protocol.plain import As, Mark
from ullage.ground.protocol.run import Platform
from ullage.ground.units import MIB
from ullage.log.bounds import Peaks
from ullage.log.plain import load_library
from ullage.log.snapshot import Int64Array

PAGE_BYTES = 2 * MIB
"""The page of the driver; a segment of small blocks has one."""
SMALL_BYTES = MIB
"""The largest block of a small segment; a large block that leaves more of its segment is split."""
NO_LIMIT = 2**63 - 1
NUM_DIVISIONS = 16
ORDERS = {Platform.LINUX: 0, Platform.WINDOWS: 1}
_MAX_STREAM = 255


class AllocatorSettings(ctypes.Structure):
    """`struct allocator_settings` of csrc/rules.h, which says what each is."""

    _fields_ = [
        ("max_split", ctypes.c_int64),
        ("max_unused", ctypes.c_int64),
        ("large_segment", ctypes.c_int64),
        ("device_bytes", ctypes.c_int64),
        ("allowed_bytes", ctypes.c_int64),
        ("range_bytes", ctypes.c_int64),
        ("collection_share", ctypes.c_double),
        ("divisions", ctypes.c_int32 * NUM_DIVISIONS),
        ("is_expandable", ctypes.c_uint8),
        ("order", ctypes.c_uint8),
        ("tie", ctypes.c_uint8),
        ("is_released_in_pool", ctypes.c_uint8),
    ]


@dataclass(frozen=True, slots=True)
class AllocatorOutcome:
    """The outcome of an allocator.

    Attributes:
        peak_requested_bytes, peak_allocated_bytes, peak_reserved_bytes: from the first of the
            operations on.
        segments: the sizes of the final segments, the smallest first.
        num_retries: how often it gave back its cache and tried again.
        num_device_allocs: how often it called cudaMalloc, or mapped pages.
        stopped_at: the operation that ran out of memory; -1: one before the first; None: none.
        num_failed_attempts: how many of the requests that are only tried failed.
    """

    peak_requested_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    segments: Annotated[tuple[int, ...], Mark.NO_KEY]
    num_retries: Annotated[int, As("num_alloc_retries")]
    num_device_allocs: int
    stopped_at: Annotated[int | None, Mark.NO_KEY]
    num_failed_attempts: Annotated[int, As("num_failed_again")]

    @property
    def peaks(self) -> Peaks:
        """The peaks of all that is reserved and allocated."""
        return Peaks(self.peak_reserved_bytes, self.peak_allocated_bytes)


@cache
def _load_rules() -> ctypes.CDLL:
    library, settings = load_library(), ctypes.POINTER(AllocatorSettings)
    size, pointer = ctypes.c_int64, ctypes.c_void_p
    library.fill_default_settings.argtypes = [settings]
    library.round_sizes.argtypes = [settings, pointer, size, pointer]
    library.size_of_segment.argtypes = [settings, size]
    library.size_of_segment.restype = size
    library.play_requests.argtypes = [settings, ctypes.POINTER(_Requests), ctypes.POINTER(_Outcome)]
    return library


def make_settings(**changes: Any) -> AllocatorSettings:  # noqa: ANN401 - of any field
    """The default settings on a device that never runs out, with changes."""
    settings = AllocatorSettings()
    _load_rules().fill_default_settings(ctypes.byref(settings))
    for name, value in changes.items():
        setattr(settings, name, value)
    return settings


def read_settings(recorded: Mapping[str, Any]) -> AllocatorSettings:
    """Reads an allocator's settings from its snapshot; what the snapshot lacks is left out."""
    settings = make_settings()
    limit = recorded.get("max_split_size")
    if isinstance(limit, int) and 0 < limit < NO_LIMIT:
        settings.max_split = limit
    divisions = recorded.get("roundup_power2_divisions")
    for power in range(NUM_DIVISIONS):
        number = divisions.get(str(2**power)) if isinstance(divisions, dict) else 0
        # The last is for all sizes above, too.
        if isinstance(number, int) and 1 < number < 2 ** (NUM_DIVISIONS - 1):
            settings.divisions[power] = number
    return settings


def round_sizes(requested: Int64Array, settings: AllocatorSettings) -> Int64Array:
    """The bytes of the blocks for these requests; -1 where there is no such number."""
    requested = np.ascontiguousarray(requested, np.int64)
    rounded = np.empty_like(requested)
    pointers = requested.ctypes.data, len(requested), rounded.ctypes.data
    _load_rules().round_sizes(ctypes.byref(settings), *pointers)
    return rounded


def segment_bytes(requested_bytes: int) -> int:
    """The bytes that the driver is asked for to serve a request, with default settings."""
    return int(_load_rules().size_of_segment(ctypes.byref(make_settings()), requested_bytes))


class _Requests(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("sizes", "streams")),
        ("num_blocks", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("before", "ops")),
        *((name, ctypes.c_int64) for name in ("num_before", "num_ops", "ignored")),
    ]


class _Outcome(ctypes.Structure):
    _fields_ = [
        *(
            (name, ctypes.c_int64)
            for name in (
                "peak_requested_bytes", "peak_allocated_bytes", "peak_reserved_bytes",
                "num_retries", "num_device_allocs", "num_failed_attempts", "stopped_at",
                "num_segments", "room_for_segments",
            )
        ),
        *((name, ctypes.c_void_p) for name in ("segments", "addresses", "reserved")),
    ]  # fmt: skip


def play_requests(
    settings: AllocatorSettings,
    *,
    sizes: Int64Array,
    streams: Int64Array,
    ops: Int64Array,
    before: Int64Array | None = None,
    ignored: Sequence[int] = (),
    addresses: Int64Array | None = None,
    reserved: Int64Array | None = None,
) -> AllocatorOutcome | None:
    """Plays the requests of a program by the rules of PyTorch's allocator.

    Args:
        settings: of the allocator, and of the device.
        sizes: (num_blocks,) requested bytes.
        streams: (num_blocks,) the number of each block's.
        ops: as ground/programs/allocator_replay.py has them.
        before: operations that lead to where these begin.
        ignored: kinds of operations that are left out.
        addresses, reserved: (num_ops,) are filled with the address that each operation took, and
            with the bytes that are reserved after it.

    Returns: None where there are more streams, or larger numbers, than it counts.
    """
    if len(streams) and int(streams.max()) > _MAX_STREAM:
        return None
    before = np.empty(0, np.int64) if before is None else before
    columns: list[NDArray[Any]] = [
        np.ascontiguousarray(sizes, np.int64),
        np.ascontiguousarray(streams, np.uint8),
        np.ascontiguousarray(before, np.int64),
        np.ascontiguousarray(ops, np.int64),
    ]
    pointers = [column.ctypes.data for column in columns]
    requests = _Requests(
        *pointers[:2], len(sizes), *pointers[2:], len(columns[2]), len(ops),
        sum(1 << kind for kind in ignored),
    )  # fmt: skip
    segments = np.empty(len(columns[2]) + len(ops) + 1, dtype=np.int64)
    outcome = _Outcome(room_for_segments=len(segments), segments=segments.ctypes.data)
    outcome.addresses = None if addresses is None else addresses.ctypes.data
    outcome.reserved = None if reserved is None else reserved.ctypes.data
    pointers_of_all = (ctypes.byref(part) for part in (settings, requests, outcome))
    if not _load_rules().play_requests(*pointers_of_all):
        return None
    names = (name for name in AllocatorOutcome.__slots__ if name not in ("segments", "stopped_at"))
    return AllocatorOutcome(
        **{name: getattr(outcome, name) for name in names},
        segments=tuple(sorted(segments[: outcome.num_segments].tolist())),
        stopped_at=None if outcome.stopped_at == len(ops) else outcome.stopped_at,
    )
