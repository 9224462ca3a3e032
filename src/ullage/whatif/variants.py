"""Replays of a trace with other operations, beside one that shows whether it can be replayed.

replay_variants(snapshot, device, recorded, requests, where)    an answer for each variant
"""

from __future__ import annotations

from collections.abc import Mapping

from ullage.phantom.launch import run_directory
from ullage.programs.allocator_replay import RETRY
from ullage.trace.addresses import platform_of
from ullage.trace.emptied import reserved_before
from ullage.trace.replay import Replay
from ullage.trace.snapshot import Snapshot
from ullage.whatif.child import Where, replaying
from ullage.whatif.requests import Requests, sizes_column
from ullage.whatif.settings import recorded_settings


def replay_variants(
    snapshot: Snapshot, device: int, recorded: Replay, requests: Requests, where: Where
) -> list[Mapping[str, int]]:
    """What PyTorch's allocator answers for each variant of the requests of a device; empty where a
    replay of the recorded requests does not come to the recorded peak.

    Raises:
        EnvironmentProblem: the replay failed.
    """
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
    check, *answers = (by_number.get(number, {}) for number in range(len(orders)))
    peak = int(reserved_before(recorded).max())
    is_exact = check.get("peak_reserved_bytes") == peak and not len(requests.packed)
    return [answer for answer in answers if "peak_reserved_bytes" in answer] if is_exact else []
