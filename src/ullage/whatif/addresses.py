"""What would have been reserved had the driver handed out its addresses in the other order.

Up to torch 2.12 (`TorchBuild.chooses_by_address`) the allocator takes the lower of two free blocks
of one size, so the order of the segments decides which of them is split. It is that of one system's
driver (phantom/csrc/machine/address_space.c); here the requests of a trace are made under both.

    measure_other_order(read_snapshot(path), Platform.LINUX)      # ((device, Peaks), ...)
"""

from __future__ import annotations

from ullage.protocol.run import Platform
from ullage.trace.allocator import Peaks
from ullage.trace.emptied import held_before
from ullage.trace.replay import replay
from ullage.trace.snapshot import Snapshot
from ullage.whatif.requests import find_requests, peaks_by_rules
from ullage.whatif.settings import recorded_settings

# Reading more events than these takes longer than a user would wait for it: some seconds.
MAX_EVENTS = 200_000


def measure_other_order(snapshot: Snapshot, platform: Platform) -> tuple[tuple[int, Peaks], ...]:
    """The devices of a trace, each with its peaks under the order that is not
    `platform`'s, where a replay under the order of the run comes to what was recorded: with default
    settings, without private pools, and where memory did not run short.
    """
    if recorded_settings(snapshot.settings):
        return ()
    peaks = (
        (device, _measure(snapshot, device, platform))
        for device, events in enumerate(snapshot.events)
        if 0 < len(events) <= MAX_EVENTS
    )
    return tuple((device, peak) for device, peak in peaks if peak is not None)


def _measure(snapshot: Snapshot, device: int, platform: Platform) -> Peaks | None:
    lives = replay(snapshot, device)
    requests = find_requests(snapshot, lives, device)
    if requests.num_retries or requests.num_failed or len(requests.packed):
        return None
    lived = (lives.segments, lives.blocks)
    recorded = Peaks(*(int(held_before(each, lives.num_events).max()) for each in lived))
    own, other = (peaks_by_rules(requests, order) for order in (platform, platform.other))
    return other if own == recorded else None
