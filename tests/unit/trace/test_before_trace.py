"""What lay in memory before a trace that is the end of a longer one; sizes in MiB, by hand."""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np

from ullage.ground.units import MIB
from ullage.log.replay import Replay, replay
from ullage.log.snapshot_reader import read_snapshot

BASE = 1 << 40


def event(action: str, offset: float, size: float) -> dict[str, Any]:
    return {"action": action, "addr": BASE + int(offset * MIB), "size": int(size * MIB),
            "stream": 0}  # fmt: skip


def segment(size: float, *live: tuple[float, float], **changes: Any) -> dict[str, Any]:
    """A segment at its end: live blocks at offsets."""
    blocks = [
        {"address": BASE + int(offset * MIB), "size": int(length * MIB),
         "requested_size": int(length * MIB), "state": "active_allocated"}
        for offset, length in live
    ]  # fmt: skip
    return {"device": 0, "address": BASE, "total_size": int(size * MIB), "stream": 0,
            "segment_type": "large", "blocks": blocks} | changes  # fmt: skip


def replay_of(tmp_path: Path, trace: list[Any], *segments: Any, **changes: Any) -> Replay:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": segments, "device_traces": [trace]} | changes))
    return replay(read_snapshot(path))


def test_what_the_allocator_left_with_a_block_is_the_blocks_own(tmp_path: Path) -> None:
    """3 MiB were asked for of a range of 3.5: what is less than 1 MiB is not split off."""
    trace = [
        event("free_completed", 3.5, 6), event("alloc", 3.5, 5), event("free_completed", 0, 3),
    ]  # fmt: skip
    got = replay_of(tmp_path, trace, segment(20, (3.5, 5)))
    assert got.contradictions == ()
    assert got.blocks.size_bytes[got.blocks.death == 2].tolist() == [int(3.5 * MIB)]


def test_the_first_block_behind_it_shows_where_a_block_ends(tmp_path: Path) -> None:
    """Behind it all is free, so only what is allocated there shows it."""
    trace = [event("alloc", 3.5, 5), event("free_completed", 0, 3)]
    got = replay_of(tmp_path, trace, segment(20, (3.5, 5)))
    assert got.contradictions == ()
    assert got.blocks.size_bytes[got.blocks.death == 1].tolist() == [int(3.5 * MIB)]


def test_a_block_above_the_limit_of_splitting_has_all_of_its_segment(tmp_path: Path) -> None:
    trace = [event("free_completed", 0, 40), event("alloc", 0, 42)]
    settings = {"allocator_settings": {"max_split_size": 32 * MIB}}
    got = replay_of(tmp_path, trace, segment(44, (0, 44)), **settings)
    assert got.contradictions == ()
    assert set(got.blocks.size_bytes.tolist()) == {44 * MIB}


def test_a_block_may_reach_over_mappings_that_go_one_by_one(tmp_path: Path) -> None:
    trace = [
        event("free_completed", 15, 25), event("segment_unmap", 20, 20),
        event("alloc", 15, 4),
    ]  # fmt: skip
    got = replay_of(tmp_path, trace, segment(20, (0, 15), (15, 4), is_expandable=True))
    assert got.contradictions == ()
    assert sorted(got.blocks.size_bytes.tolist()) == [4 * MIB, 15 * MIB, 25 * MIB]


def test_an_expandable_segment_is_cut_to_the_last_block_however_it_was_mapped(
    tmp_path: Path,
) -> None:
    """The middle is mapped in the trace, so what lies behind it begins at no segment's address."""
    trace = [event("alloc", 40, 19.5), event("segment_map", 20, 20)]
    got = replay_of(tmp_path, trace, segment(60, (0, 20), (40, 19.5), is_expandable=True))
    assert got.contradictions == ()


def test_another_pools_segment_may_have_had_an_address_before(tmp_path: Path) -> None:
    """A small segment goes, and a large one is made where it was."""
    trace = [
        event("alloc", 1, 0.25), event("alloc", 1.25, 0.25),
        *(event("free_completed", *one) for one in ((0, 1), (1, 0.25), (1.25, 0.25))),
        event("segment_free", 0, 2), event("segment_alloc", 0, 20), event("alloc", 0, 15),
    ]  # fmt: skip
    got = replay_of(tmp_path, trace, segment(20, (0, 15)))
    assert got.contradictions == ()
    assert got.blocks.size_bytes.tolist() == [MIB, MIB // 4, MIB // 4, 15 * MIB]


def test_every_end_of_a_sound_trace_is_sound(tmp_path: Path) -> None:
    """An allocator that splits by PyTorch's rule plays 400 requests; a ring may lose any number of
    them.
    """
    chosen, free, live = random.Random(5), [(0, 4096)], {}  # in units of a quarter of a MiB
    trace = [event("segment_alloc", 0, 1024)]
    for _ in range(400):
        size = chosen.randint(5, 60)
        room = min((r for r in free if r[1] >= size), key=lambda r: (r[1], r[0]), default=None)
        if room is None or (live and chosen.random() < 0.4):
            at = chosen.choice(sorted(live))
            asked, length = live.pop(at)
            trace.append(event("free_completed", at / 4, asked / 4))
            free.append((at, length))
            free = _merged(sorted(free))
            continue
        free.remove(room)
        length = size if room[1] - size > 4 else room[1]
        if length < room[1]:
            free.append((room[0] + length, room[1] - length))
        live[room[0]] = (size, length)
        trace.append(event("alloc", room[0] / 4, size / 4))
    assert any(asked != length for asked, length in live.values())
    at_end = segment(1024, *((at / 4, length / 4) for at, (_, length) in sorted(live.items())))
    whole = replay_of(tmp_path, trace, at_end)
    for first in range(0, len(trace), 7):
        got = replay_of(tmp_path, trace[first:], at_end)
        assert got.contradictions == ()
        born = whole.blocks.birth >= first
        assert np.array_equal(
            got.blocks.size_bytes[got.blocks.birth >= 0], whole.blocks.size_bytes[born]
        )


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for begin, length in ranges:
        if merged and sum(merged[-1]) == begin:
            merged[-1] = (merged[-1][0], merged[-1][1] + length)
        else:
            merged.append((begin, length))
    return merged
