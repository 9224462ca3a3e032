"""Replays of a trace with other requests, or with addresses in the other order, beside one that
shows whether it can be replayed.

    replay_variants(snapshot, device, recorded, [requests, *variants], where)     the peaks of each
    measure_other_order(snapshot, where)                              `OtherPeaks` of each device
"""

from __future__ import annotations

from collections.abc import Sequence

from ullage.explain.whatif.replays import ReplayOrder, Where, replay_all
from ullage.explain.whatif.settings import recorded_settings
from ullage.ground.protocol.run import Platform
from ullage.log.addresses import platform_of
from ullage.log.blocks import held_before
from ullage.log.bounds import OtherPeaks, Otherwise, Peaks
from ullage.log.replay import Replay, replay
from ullage.log.requests import Requests, find_requests
from ullage.log.snapshot import Snapshot

# Reading more events than these takes longer than a user would wait for it: some seconds.
MAX_EVENTS = 200_000


def replay_variants(
    snapshot: Snapshot,
    device: int,
    recorded: Replay,
    variants: Sequence[Requests],
    where: Where,
) -> list[Peaks]:
    """The peaks of each variant of the requests of a device but the first, the recorded ones; empty
    where these do not come to what was recorded.

    Raises: EnvironmentProblem: torch's own allocator was needed, and could not be asked.
    """
    if len(variants[0].packed):
        return []
    settings, platform = recorded_settings(snapshot.settings), platform_of(snapshot, device)
    peaks = replay_peaks(variants, settings, platform, where)
    reserved = int(held_before(recorded.segments, recorded.num_events).max())
    return peaks[1:] if peaks and peaks[0].reserved_bytes == reserved else []


def replay_peaks(
    variants: Sequence[Requests], settings: str, platform: Platform, where: Where
) -> list[Peaks]:
    """The peaks of requests with addresses in the order of a system; empty where one has none.

    Raises: EnvironmentProblem: torch's own allocator was needed, and could not be asked.
    """
    orders = [ReplayOrder(requests, settings, where.device, platform) for requests in variants]
    peaks = [answer.played.peaks for answer in replay_all(orders, where) if answer.played]
    return peaks if len(peaks) == len(orders) else []


def measure_other_order(snapshot: Snapshot, where: Where) -> tuple[OtherPeaks, ...]:
    """The devices of a trace, each with its peaks had the driver handed out addresses in the order
    of the other system, where a replay under that of the run comes to what was recorded: with
    default settings, without private pools, and where memory did not run short.

    Up to torch 2.12 (`TorchBuild.chooses_by_address`) the allocator takes the lower of two free
    blocks of one size, so the order of the segments decides which of them is split.

    Raises: EnvironmentProblem: torch's own allocator was needed, and could not be asked.
    """
    if recorded_settings(snapshot.settings) or len(snapshot.pools) > 1:
        return ()
    peaks = (
        (device, _measure(snapshot, device, where))
        for device, events in enumerate(snapshot.events)
        if 0 < len(events) <= MAX_EVENTS
    )
    return tuple(
        OtherPeaks(Otherwise.ADDRESSES, device, (peak,))
        for device, peak in peaks
        if peak is not None
    )


def _measure(snapshot: Snapshot, device: int, where: Where) -> Peaks | None:
    lives = replay(snapshot, device)
    requests = find_requests(snapshot, lives, device)
    if requests.num_retries or requests.num_failed or len(requests.packed):
        return None
    lived = (lives.segments, lives.blocks)
    recorded = Peaks(*(int(held_before(each, lives.num_events).max()) for each in lived))
    platform = platform_of(snapshot, device)
    own, other = (replay_peaks([requests], "", each, where) for each in (platform, platform.other))
    return other[0] if own == [recorded] and other else None
