"""The bytes that a program would have reserved with expandable segments: its requests again, by the
rules of PyTorch's allocator.

measure_expandable(snapshot, replay, device)        bytes at the peak, or None

A replay needs the requests from the first on. It counts only where a replay under the recorded
settings comes to what was recorded, to the byte.
"""

from __future__ import annotations

from ullage.ground.programs.allocator_replay import ATTEMPT, RETRY
from ullage.log.addresses import platform_of
from ullage.log.blocks import held_before
from ullage.log.replay import Replay
from ullage.log.requests import find_requests
from ullage.log.rules import ORDERS, make_settings, read_settings
from ullage.log.snapshot import Snapshot
from ullage.log.ties import BY_ADDRESS, BY_AGE


def measure_expandable(snapshot: Snapshot, replay: Replay, device: int) -> int | None:
    """The most that the trace of a device would have reserved with expandable segments.

    None where that cannot be replayed: without a trace, where it begins with something reserved
    (the end of a longer one), contradicts itself or has private pools, where segments are
    expandable already, and where the recorded settings do not come to what was recorded.
    """
    is_whole = replay.num_events > 0 and not (replay.segments.birth == -1).any()
    is_plain = len(snapshot.pools) < 2 and snapshot.settings.get("expandable_segments") is not True
    if not is_whole or not is_plain or replay.contradictions or not len(replay.segments):
        return None
    requests = find_requests(snapshot, replay, device)
    settings = read_settings(snapshot.settings)
    settings.order = ORDERS[platform_of(snapshot, device)]
    reserved = held_before(replay.segments, replay.num_events)
    recorded = int(reserved.max()), int(reserved[-1])
    for settings.tie in (BY_AGE, BY_ADDRESS):  # the file does not say which torch it was
        again = requests.play(settings, ignored=[ATTEMPT])
        if again and (again.peak_reserved_bytes, sum(again.segments)) == recorded:
            break
    else:
        return None
    # The allocator gave its cache back where memory was short; with less of it, it need not.
    expandable = requests.play(make_settings(is_expandable=True), ignored=[ATTEMPT, RETRY])
    return None if expandable is None else expandable.peak_reserved_bytes
