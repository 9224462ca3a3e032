"""Calls the replay of PyTorch's allocator and the order of addresses that are written in C
(estimate/csrc, phantom/csrc/machine/address_space.c).
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from ullage.errors import UllageError
from ullage.native.libraries import REPLAY
from ullage.protocol.run import Platform

# From 32 MiB up to the highest address that a signed number has.
_BOTTOM, _TOP = 32 << 20, 2**63 - 1
_ORDERS = {Platform.LINUX: 0, Platform.WINDOWS: 1, None: 2}


class Peaks(NamedTuple):
    """The most that an allocator held, and that it had given out, in bytes."""

    reserved_bytes: int
    allocated_bytes: int


class Step(NamedTuple):
    """Addresses that are taken; or, where `of` is the number of a step before, given back: bytes of
    what that step took, from an offset on.
    """

    size_bytes: int
    of: int | None = None
    offset_bytes: int = 0


@cache
def load_replay() -> ctypes.CDLL:
    """The library.

    Raises:
        UllageError: it was not built.
    """
    try:
        return ctypes.CDLL(str(REPLAY))
    except OSError as error:
        raise UllageError(
            f"the native part {REPLAY.name} is missing ({error}); "
            "build it with `python -m ullage.native.build`"
        ) from None


def pack(kind: str, numbers: Sequence[int]) -> ctypes.Array[ctypes.c_char]:
    """Numbers as C reads them, of a kind that `array` knows."""
    packed = array(kind, numbers or (0,))
    return (ctypes.c_char * (len(packed) * packed.itemsize)).from_buffer(packed)


def play_addresses(steps: Sequence[Step], platform: Platform) -> list[int]:
    """The address that each step takes, in the order of a system's driver; 0 where it gives back.

    Raises:
        UllageError: the library was not built, or no address is left.
    """
    addresses = array("Q", bytes(8 * max(len(steps), 1)))
    number, numbers = ctypes.c_int64, ctypes.c_char_p
    call = load_replay().play_addresses
    call.argtypes = [
        ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, numbers, numbers, numbers, number,
        ctypes.c_void_p,
    ]  # fmt: skip
    is_done = call(
        _ORDERS[platform], _BOTTOM, _TOP,
        pack("q", [step.size_bytes if step.of is None else -step.size_bytes for step in steps]),
        pack("q", [step.of or 0 for step in steps]),
        pack("q", [step.offset_bytes for step in steps]),
        len(steps), addresses.buffer_info()[0],
    )  # fmt: skip
    if not is_done:
        raise UllageError("no address is left for what was asked")
    return addresses[: len(steps)].tolist()


def replay_requests(
    sizes: Sequence[int], streams: Sequence[int], ops: Sequence[int], platform: Platform | None
) -> Peaks | None:
    """What PyTorch's allocator comes to with its default settings on a device that never runs out.

    Args:
        sizes: of the blocks, as the allocator rounds them, in bytes.
        streams: the number of each block's.
        ops: as programs/allocator_replay.py has them.
        platform: the system whose driver gives the segments their addresses, by which the allocator
            chooses among free blocks of one size; None: by the age of their segments.

    Returns: None where there are operations that are not known here, such as private pools, or
        too many streams.
    """
    if max(streams, default=0) > _MAX_STREAM:
        return None
    peaks = array("q", (0, 0))
    number, numbers = ctypes.c_int64, ctypes.c_char_p
    call = load_replay().replay_requests
    call.argtypes = [ctypes.c_int, numbers, numbers, number, numbers, number, ctypes.c_void_p]
    is_done = call(
        _ORDERS[platform], pack("q", sizes), bytes(streams), len(sizes), pack("q", ops), len(ops),
        peaks.buffer_info()[0],
    )  # fmt: skip
    return Peaks(*peaks) if is_done else None


_MAX_STREAM = 255
