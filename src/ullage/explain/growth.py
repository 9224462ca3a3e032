"""What grows: call sites whose blocks come again and again and stay.

A program that repeats itself frees what a repetition made. Where blocks of one site are made all
along the trace and are still there at its end, something holds on to them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ullage.explain.sites import Sites
from ullage.trace.replay import Replay
from ullage.trace.snapshot import Int64Array

# The trace is cut into so many parts; what grows has survivors from this many of the later ones.
_NUM_PARTS = 10
_MIN_PARTS = 6
_MIN_EVENTS = 60


@dataclass(frozen=True, slots=True)
class Growth:
    """A site whose blocks pile up.

    Attributes:
        site: number in `Sites.names`.
        num_blocks, size_bytes: of those that came in the trace and are there at its end.
        bytes_per_event: how fast, over the whole trace.
        first_event: when the oldest of them came.
    """

    site: int
    num_blocks: int
    size_bytes: int
    bytes_per_event: float
    first_event: int


def find_growth(replay: Replay, sites: Sites) -> tuple[Growth, ...]:
    """The sites whose blocks pile up, that with the most bytes first."""
    if replay.num_events < _MIN_EVENTS:
        return ()
    blocks = replay.blocks
    stays = (blocks.birth >= 0) & (blocks.death == replay.num_events)
    numbers = np.flatnonzero(stays)
    site = sites.of_stack[blocks.stack[numbers]].astype(np.int64)
    part = blocks.birth[numbers] * _NUM_PARTS // replay.num_events
    num_parts = _count_parts(site, part, len(sites.names))
    found = []
    for number in np.flatnonzero(num_parts >= _MIN_PARTS).tolist():
        own = numbers[site == number]
        size = int(blocks.size_bytes[own].sum())
        found.append(
            Growth(
                site=number,
                num_blocks=len(own),
                size_bytes=size,
                bytes_per_event=size / replay.num_events,
                first_event=int(blocks.birth[own].min()),
            )
        )
    return tuple(sorted(found, key=lambda growth: -growth.size_bytes))


def _count_parts(site: Int64Array, part: Int64Array, num_sites: int) -> Int64Array:
    """In how many parts of the trace each site has survivors; the first part, in which a program
    sets up what stays, does not count.
    """
    later = part > 0
    pairs = np.unique(site[later] * _NUM_PARTS + part[later])
    return np.bincount(pairs // _NUM_PARTS, minlength=num_sites).astype(np.int64)
