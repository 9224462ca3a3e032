"""A memory snapshot explained: the peak and who owned it, what is reserved and not used, and what
grows.

report = explain_snapshot(read_snapshot(path))
report.devices[0].owners_at_peak
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ullage.explain.fragmentation import Fragmentation, find_fragmentation
from ullage.explain.growth import Growth, find_growth
from ullage.explain.levels import Levels, find_levels
from ullage.explain.owners import Owners, find_owners, sum_by_category
from ullage.explain.sites import Sites, find_sites
from ullage.trace.model import Category
from ullage.trace.replay import Replay, replay
from ullage.trace.snapshot import Action, Snapshot


@dataclass(frozen=True, slots=True)
class SiteShare:
    """What the blocks of one site came to at a moment."""

    site: str
    category: Category
    num_blocks: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class OutOfMemoryEvent:
    """A request that the device could not serve: after which event, how many bytes, and what the
    device had free then.
    """

    event: int
    requested_bytes: int
    device_free_bytes: int


@dataclass(frozen=True, slots=True)
class DeviceSnapshot:
    """One device of a snapshot.

    Attributes:
        index: of the device.
        replay: the life of every block and segment.
        levels: what was in use after each event.
        peak_event: after which the most was allocated; -1 is before the first event.
        owners: of every block; guessed, unless ullage recorded the run.
        owners_at_peak: bytes by category; they sum to the allocated bytes there.
        sites_at_peak: the largest first.
        fragmentation: at the end of the trace, or where it ran out of memory.
        growth: what piles up.
        out_of_memory: the last request that failed; None where none did.
    """

    index: int
    replay: Replay
    levels: Levels
    peak_event: int
    owners: Owners
    owners_at_peak: Mapping[Category, int]
    sites_at_peak: tuple[SiteShare, ...]
    fragmentation: Fragmentation
    growth: tuple[Growth, ...]
    out_of_memory: OutOfMemoryEvent | None


@dataclass(frozen=True, slots=True)
class SnapshotReport:
    """What a snapshot says: its devices, those that hold nothing left out."""

    snapshot: Snapshot
    sites: Sites
    devices: tuple[DeviceSnapshot, ...]

    @property
    def contradictions(self) -> tuple[str, ...]:
        """Where the file does not agree with itself."""
        return tuple(text for device in self.devices for text in device.replay.contradictions)


def explain_snapshot(snapshot: Snapshot) -> SnapshotReport:
    """Explains a snapshot."""
    sites = find_sites(snapshot.stacks)
    indices = {index for index, events in enumerate(snapshot.events) if len(events)}
    indices |= set(np.unique(snapshot.segments.device).tolist())
    devices = tuple(_explain_device(snapshot, sites, index) for index in sorted(indices))
    return SnapshotReport(snapshot, sites, devices)


def _explain_device(snapshot: Snapshot, sites: Sites, index: int) -> DeviceSnapshot:
    replayed = replay(snapshot, index)
    levels = find_levels(replayed)
    owners = find_owners(snapshot, replayed, index)
    peak = levels.peak_event
    live = replayed.blocks.is_live(peak)
    oom = _find_out_of_memory(snapshot, index)
    moment = replayed.num_events - 1 if oom is None else oom.event
    return DeviceSnapshot(
        index=index,
        replay=replayed,
        levels=levels,
        peak_event=peak,
        owners=owners,
        owners_at_peak=sum_by_category(owners, replayed.blocks.size_bytes, live),
        sites_at_peak=share_sites(replayed, owners, sites, peak),
        fragmentation=find_fragmentation(replayed, moment),
        growth=find_growth(replayed, sites),
        out_of_memory=oom,
    )


def share_sites(
    replayed: Replay, owners: Owners, sites: Sites, event: int
) -> tuple[SiteShare, ...]:
    """What each site's live blocks came to after an event, the largest first; a site whose blocks
    have several categories is as many rows.
    """
    numbers = np.flatnonzero(replayed.blocks.is_live(event))
    site = sites.of_stack[replayed.blocks.stack[numbers]].astype(np.int64)
    keys, place = np.unique(site * 256 + owners.category[numbers], return_inverse=True)
    sums = np.zeros(len(keys), dtype=np.int64)
    np.add.at(sums, place, replayed.blocks.size_bytes[numbers])
    counts = np.bincount(place, minlength=len(keys))
    categories = tuple(Category)
    rows = [
        SiteShare(sites.names[key // 256], categories[key % 256], int(count), int(size))
        for key, count, size in zip(keys.tolist(), counts, sums, strict=True)
    ]
    return tuple(sorted(rows, key=lambda row: -row.size_bytes))


def _find_out_of_memory(snapshot: Snapshot, device: int) -> OutOfMemoryEvent | None:
    events = snapshot.events_of(device)
    numbers = np.flatnonzero(events.action == Action.OOM)
    if not len(numbers):
        return None
    last = int(numbers[-1])
    return OutOfMemoryEvent(last, int(events.size_bytes[last]), int(events.address[last]))
