"""Replays of a trace with other operations, beside one that shows whether it can be replayed.

replay_variants(snapshot, device, recorded, requests, where)    the peaks of each variant
"""

from __future__ import annotations

from ullage.phantom.launch import run_directory
from ullage.programs.allocator_replay import RETRY
from ullage.protocol.run import Platform
from ullage.trace.addresses import platform_of
from ullage.trace.allocator import Peaks
from ullage.trace.emptied import held_before
from ullage.trace.replay import Replay
from ullage.trace.snapshot import Snapshot
from ullage.units import PIB
from ullage.whatif.child import Where, replaying
from ullage.whatif.requests import Requests, peaks_by_rules, sizes_column
from ullage.whatif.settings import recorded_settings


def replay_variants(
    snapshot: Snapshot, device: int, recorded: Replay, requests: Requests, where: Where
) -> list[Peaks]:
    """The peaks of each variant of the requests of a device: by the allocator's rules where they
    give the recorded peaks for the recorded requests, else by PyTorch's own allocator, for which a
    process imports torch; empty where that does not give them, either.

    Raises: EnvironmentProblem: the replay failed.
    """
    if len(requests.packed):
        return []
    reserved = int(held_before(recorded.segments, recorded.num_events).max())
    allocated = int(held_before(recorded.blocks, recorded.num_events).max())
    by_rules = _replay_by_rules(snapshot, device, requests, where)
    if by_rules[:1] == [Peaks(reserved, allocated)]:
        return by_rules[1:]
    in_torch = _replay_in_torch(snapshot, device, requests, where)
    return in_torch[1:] if in_torch and in_torch[0].reserved_bytes == reserved else []


def _replay_by_rules(
    snapshot: Snapshot, device: int, requests: Requests, where: Where
) -> list[Peaks]:
    """The peaks of the recorded requests and of each variant; empty where the rules do not know a
    setting or an operation, or the device might run out of memory, which empties the cache.
    """
    if recorded_settings(snapshot.settings):
        return []
    order = platform_of(snapshot, device) if where.build.chooses_by_address else None
    return replay_by_rules(requests, order, where)


def replay_by_rules(requests: Requests, order: Platform | None, where: Where) -> list[Peaks]:
    """The same, with the default settings and addresses in the order of a system; None: by age."""
    gpu = where.device.usable
    room = PIB if where.device.is_unlimited else gpu.total_bytes - gpu.context_high_bytes
    names = ("ops", *requests.variants)
    answers = (peaks_by_rules(requests, order, name) for name in names)
    peaks = [peak for peak in answers if peak is not None and peak.reserved_bytes <= room]
    return peaks if len(peaks) == len(names) else []


def _replay_in_torch(
    snapshot: Snapshot, device: int, requests: Requests, where: Where
) -> list[Peaks]:
    """The same by the allocator of an interpreter's torch; empty where a replay has no answer."""
    orders = [
        {
            "number": number,
            "settings": recorded_settings(snapshot.settings),
            "device": where.device.environment_text(),
            "platform": platform_of(snapshot, device).value,
            "fraction": None,
            "before": "packed",
            "ops": ops,
            "sizes": sizes_column(ops) if ops in requests.variant_sizes else "sizes",
            "ignored": [RETRY],
        }
        for number, ops in enumerate(("ops", *requests.variants))
    ]
    with run_directory() as directory, replaying(requests, orders, where, directory) as finish:
        by_number = finish()
    answers = [by_number.get(number, {}) for number in range(len(orders))]
    names = ("peak_reserved_bytes", "peak_allocated_bytes")
    is_whole = all(name in answer for answer in answers for name in names)
    return [Peaks(*(answer[name] for name in names)) for answer in answers] if is_whole else []
