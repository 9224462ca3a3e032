"""What would have been reserved had the driver handed out its addresses in the other order.

Up to torch 2.12 the allocator takes the lower of two free blocks of one size, so the order of the
segments decides which of them is split. It is that of one system's driver
(phantom/csrc/machine/address_space.c); here the requests of a trace are made again under both. From
torch 2.13 on the segment that came first decides (pytorch/pytorch#183591), and addresses do not.

    if build.chooses_by_address:
        measure_other_order(read_snapshot(path), Platform.LINUX)      # ((device, bytes), ...)
"""

from __future__ import annotations

from ullage.protocol.run import Platform
from ullage.trace.emptied import held_before
from ullage.trace.replay import replay
from ullage.trace.snapshot import Snapshot
from ullage.whatif.requests import find_requests, peaks_by_rules
from ullage.whatif.settings import recorded_settings

# Reading more events than these takes longer than a user would wait for it: some seconds.
_MAX_EVENTS = 200_000


def measure_other_order(snapshot: Snapshot, platform: Platform) -> tuple[tuple[int, int], ...]:
    """The devices that a trace tells of, each with its peak of reserved bytes under the order that
    is not `platform`'s.

    It counts where a replay under the order of the run comes to what was recorded; elsewhere there
    is no figure: with other settings, private pools, or where memory ran short.
    """
    if recorded_settings(snapshot.settings):
        return ()
    peaks = (
        (device, _measure(snapshot, device, platform))
        for device, events in enumerate(snapshot.events)
        if 0 < len(events) <= _MAX_EVENTS
    )
    return tuple((device, peak) for device, peak in peaks if peak is not None)


def _measure(snapshot: Snapshot, device: int, platform: Platform) -> int | None:
    lives = replay(snapshot, device)
    requests = find_requests(snapshot, lives, device)
    if requests.num_retries or requests.num_failed or len(requests.packed):
        return None
    recorded = int(held_before(lives.segments, lives.num_events).max())
    peaks, others = (peaks_by_rules(requests, order) for order in (platform, platform.other))
    is_exact = peaks is not None and peaks.reserved_bytes == recorded
    return others.reserved_bytes if is_exact and others is not None else None
