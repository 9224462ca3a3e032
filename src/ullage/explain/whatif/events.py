"""The bytes that a run without a snapshot would have reserved otherwise: with its workspaces at
their bounds, and with addresses in the other order.

The events of its record stand for its requests. They have no streams, pools or settings: where the
rules of PyTorch's allocator do not come to the recorded peaks, there is no figure. And they have
bytes of blocks, up to 1 MiB more than was asked for, so there is none of what is allocated.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ullage.explain.owners.matching import Match
from ullage.explain.whatif.replays import Where
from ullage.explain.whatif.variants import MAX_EVENTS, replay_peaks
from ullage.explain.whatif.workspaces import ends_of, find_resized, with_bounds
from ullage.ground.programs.allocator_replay import EMPTY_CACHE
from ullage.ground.protocol.run import Platform
from ullage.log.blocks import read_blocks
from ullage.log.bounds import OtherPeaks, Otherwise, Peaks
from ullage.log.model import EventKind, Int64Array, Record
from ullage.log.requests import Requests, in_order


def measure_by_events(record: Record, where: Where, platform: Platform) -> Record:
    """The record with the ends of each device for which the replay comes to what was recorded."""
    events = record.events
    if record.first_position or len(events) > MAX_EVENTS or (events.kind != EventKind.BLOCK).any():
        return record
    otherwise: list[OtherPeaks] = []
    for device in np.unique(events.device).tolist():
        variants, scratch = _requests_of(record, device)
        rows = np.flatnonzero(events.device == device)
        allocated = int(events.size_bytes[rows].cumsum().max())
        peaks = replay_peaks(variants, "", platform, where)
        if peaks[:1] != [Peaks(int(events.reserved_bytes[rows].max()), allocated)]:
            continue
        if where.build.chooses_by_address:
            (other,) = replay_peaks(variants[:1], "", platform.other, where)
            same = (Peaks(other.reserved_bytes, allocated),)
            otherwise.append(OtherPeaks(Otherwise.ADDRESSES, device, same))
        if record.scratch is not None and len(scratch):
            bounds = [Peaks(each.reserved_bytes, allocated) for each in peaks[1:]]
            otherwise.append(ends_of(device, record.scratch, scratch, bounds))
    return replace(record, otherwise=tuple(otherwise))


def _requests_of(record: Record, device: int) -> tuple[list[Requests], Int64Array]:
    """The requests of a device, and with its workspaces at their bounds; the rows of these."""
    lives, none = read_blocks(record), np.empty(0, dtype=np.int64)
    blocks = np.flatnonzero(lives.device == device)
    numbers, birth, death = np.arange(len(blocks)), lives.birth[blocks], lives.death[blocks]
    # What is reserved falls where the cache was emptied, before the event that tells.
    rows = np.flatnonzero(record.events.device == device)
    emptied = rows[1:][np.diff(record.events.reserved_bytes[rows]) < 0]
    dies = death < lives.num_events
    ops, event = in_order(
        [
            (np.full(len(emptied), -EMPTY_CACHE), emptied),
            (numbers, birth),
            (len(blocks) + numbers[dies], death[dies]),
        ]
    )
    sizes = lives.size_bytes[blocks]
    requests = Requests(sizes, np.zeros_like(sizes), ops, event, none, none, len(emptied), 0, 0)
    scratch = record.scratch
    if scratch is None or not (scratch.device == device).any():
        return [requests], none
    of_device = np.flatnonzero(scratch.device == device)
    match = Match(record, lives, blocks, event + 1, event, len(record.events), device)
    resized = find_resized(match, scratch, of_device, np.ones(len(blocks), dtype=bool))
    return [requests, *with_bounds(requests, resized)], of_device
