"""Snapshots from a line of text."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ullage.explain.whatif import other_ends
from ullage.explain.whatif.replays import ReplayAnswer, ReplayOrder, Where
from ullage.log.rules import AllocatorOutcome
from ullage.log.snapshot import Snapshot
from ullage.log.snapshot_reader import read_snapshot

MIB = 2**20
_SEGMENT = 2 * MIB


def build_snapshot(
    script: str,
    *,
    has_stacks: bool = False,
    frames: Mapping[str, list[dict[str, Any]]] | None = None,
) -> dict[str, Any]:
    """What torch dumps of words such as "+a +b -a e !64 |": a block of a segment of 2 MiB of its
    own comes, goes; e gives free segments back, ! is a request of so many MiB that fails; what is
    left of | came before the trace. +p:1 is in private pool 1; r gives segments back as the
    allocator does, with the stack of what follows. ?a lets go of a block that another stream still
    uses, whose -a comes when that is done. `frames` are those with which blocks come, by name.
    """
    events: list[dict[str, Any]] = []
    live: dict[str, dict[str, Any]] = {}
    free: list[dict[str, Any]] = []
    held: set[str] = set()
    for number, word in enumerate(script.split()):
        kind, _, pool = word[1:].partition(":")
        event = {"stream": 0, "frames": []}
        if has_stacks:
            # A retry happens within the call of the next word.
            line = number + (word == "r")
            event["frames"] = [{"filename": "train.py", "line": line, "name": "f"}]
        if word == "|":
            events.clear()
        elif word in ("e", "r"):
            events += [{**event, "action": "segment_free", "addr": one["address"],
                        "size": _SEGMENT} for one in free]  # fmt: skip
            free.clear()
        elif word[0] == "!":
            events.append({**event, "action": "oom", "addr": 5, "size": int(kind) * MIB})
        elif word[0] == "?":
            block = {"addr": live[kind]["address"], "size": MIB}
            events.append({**event, **block, "action": "free_requested"})
            held.add(kind)
        elif word[0] == "-":
            segment = live.pop(kind)
            free.append(segment)
            block = {"addr": segment["address"], "size": MIB}
            taken = ("completed",) if kind in held else ("requested", "completed")
            events += [{**event, **block, "action": f"free_{what}"} for what in taken]
        else:
            segment = {"address": (number + 1) << 32, "pool": (0, int(pool or 0))}
            live[kind] = segment
            address = segment["address"]
            events += [
                {**event, "action": "segment_alloc", "addr": address, "size": _SEGMENT},
                {
                    **event,
                    "action": "alloc",
                    "addr": address,
                    "size": MIB,
                    "frames": (frames or {}).get(kind, event["frames"]),
                },
            ]
    segments = [*(_segment(one, is_live=True) for one in live.values()),
                *(_segment(one, is_live=False) for one in free)]  # fmt: skip
    return {"segments": segments, "device_traces": [events]}


def _segment(segment: dict[str, Any], *, is_live: bool) -> dict[str, Any]:
    state = "active_allocated" if is_live else "inactive"
    pieces = [(0, state), (MIB, "inactive")] if is_live else [(0, state)]
    size = MIB if is_live else _SEGMENT
    blocks = [
        {"address": segment["address"] + offset, "size": size, "requested_size": size,
         "state": one, "frames": []}
        for offset, one in pieces
    ]  # fmt: skip
    return {
        "device": 0, "address": segment["address"], "total_size": _SEGMENT, "stream": 0,
        "segment_type": "small", "segment_pool_id": segment["pool"], "blocks": blocks,
    }  # fmt: skip


@pytest.fixture
def make_snapshot(tmp_path: Path) -> Callable[..., Snapshot]:
    """`make_snapshot("+a -a e")`: see `build_snapshot`."""

    def make(script: str, **options: Any) -> Snapshot:
        path = tmp_path / "snapshot.pickle"
        path.write_bytes(pickle.dumps(build_snapshot(script, **options)))
        return read_snapshot(path)

    return make


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The requests that are replayed; the answers are "peaks", in MiB of reserved memory, of which
    1 MiB is not allocated, and None where there is none.
    """
    sent: dict[str, Any] = {"peaks": (6, 4, 9)}

    def answer(orders: Sequence[ReplayOrder], _where: Where) -> list[ReplayAnswer]:
        sent["requests"] = [order.requests for order in orders]
        return [ReplayAnswer(None) if peak is None else ReplayAnswer(played_with(peak * MIB))
                for peak, _order in zip(sent["peaks"], orders, strict=True)]  # fmt: skip

    monkeypatch.setattr(other_ends, "replay_all", answer)
    return sent


def played_with(reserved: int) -> AllocatorOutcome:
    return AllocatorOutcome(0, reserved - MIB, reserved, (), 0, 0, None, 0)
