"""The peak of allocated bytes on a device, and the owners of the bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from ullage.explain.owners.ownership import CATEGORIES
from ullage.trace.lifetime import Lifetimes, live_at
from ullage.trace.model import Category, UInt8Array
from ullage.trace.timeline import Timeline


@dataclass(frozen=True, slots=True)
class Ownership:
    """The owners of a device's allocated bytes at a position; they sum to `allocated_bytes`."""

    position: int
    allocated_bytes: int
    by_category: Mapping[Category, int]


def own_at(
    lifetimes: Lifetimes, categories: UInt8Array, device: int, position: int, allocated_bytes: int
) -> Ownership:
    """Returns the owners of the `allocated_bytes` of a device at a position.

    Whole blocks are counted, so rounding belongs to the owner of the block. Bytes that are missing
    from the log, because it was capped, are UNATTRIBUTED.
    """
    live = live_at(lifetimes, position) & (lifetimes.device == device)
    sums = np.zeros(len(CATEGORIES), dtype=np.int64)
    np.add.at(sums, categories[live], lifetimes.size_bytes[live])
    by_category = {category: int(bytes_) for category, bytes_ in zip(CATEGORIES, sums, strict=True)}
    by_category[Category.UNATTRIBUTED] += allocated_bytes - int(sums.sum())
    return Ownership(position, allocated_bytes, MappingProxyType(by_category))


def peak_position(timeline: Timeline) -> int:
    """Returns the first position at which allocated bytes peak."""
    return int(timeline.position[np.argmax(timeline.allocated_bytes)])
