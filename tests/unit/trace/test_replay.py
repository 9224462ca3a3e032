"""The life of every block: rebuilt from a trace that starts anywhere, held against its end."""

from __future__ import annotations

import lzma
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ullage.ground.units import MIB
from ullage.log.replay import Replay, replay
from ullage.log.rules import read_settings, round_sizes
from ullage.log.snapshot_reader import read_snapshot

GOLDEN = Path(__file__).parents[2] / "golden" / "snapshots"
NAMES = sorted(path.name.partition(".")[0] for path in GOLDEN.glob("*.pickle.xz"))
SYNTHETIC = "mosaic_SYNTHETIC"
# The peak that SOURCES.md states; of the others it is the reserved memory at the end.
LARGE = 20 * MIB


class Allocator:
    """The allocator's rules, written plainly: first free range by size, split, merge.

    An oracle for the replay: it knows every block's true size and every event.
    """

    def __init__(self) -> None:
        self.ranges: list[list[int]] = []  # address, size, is live, segment, requested
        self.events: list[dict[str, Any]] = []
        self.num_segments = 0
        self.sizes: list[int] = []  # of each alloc event

    def allocate(self, requested: int) -> int:
        rounded = max(512, -(-requested // 512) * 512)
        is_small = rounded <= MIB
        fitting = [
            range_ for range_ in self.ranges
            if not range_[2] and range_[1] >= rounded and (self.is_small(range_[3]) == is_small)
        ]  # fmt: skip
        if not fitting:
            size = (
                2 * MIB
                if is_small
                else LARGE
                if rounded < 10 * MIB
                else -(-rounded // (2 * MIB)) * 2 * MIB
            )
            fitting = [[(self.num_segments + 1) << 36, size, 0, self.num_segments, 0]]
            self.sizes_of_segments = {
                **getattr(self, "sizes_of_segments", {}),
                self.num_segments: size,
            }
            self.num_segments += 1
            self.ranges += fitting
            self.note("segment_alloc", fitting[0][0], size)
        best = min(fitting, key=lambda range_: (range_[1], range_[0]))
        rest = best[1] - rounded
        if rest >= 512 if is_small else rest > MIB:
            self.ranges.append([best[0] + rounded, rest, 0, best[3], 0])
            best[1] = rounded
        best[2], best[4] = 1, requested
        self.note("alloc", best[0], requested)
        self.sizes.append(best[1])
        return best[0]

    def is_small(self, segment: int) -> bool:
        return bool(self.sizes_of_segments[segment] == 2 * MIB)

    def free(self, address: int) -> None:
        range_ = next(range_ for range_ in self.ranges if range_[0] == address)
        self.note("free_requested", address, range_[4])
        self.note("free_completed", address, range_[4])
        range_[2] = 0
        self.ranges.sort()
        merged: list[list[int]] = []
        for each in self.ranges:
            last = merged[-1] if merged else None
            if last and not last[2] and not each[2] and last[3] == each[3]:
                last[1] += each[1]
            else:
                merged.append(each)
        self.ranges = merged

    def note(self, action: str, address: int, size: int) -> None:
        self.events.append({"action": action, "addr": address, "size": size, "stream": 0})

    def snapshot(self, first: int = 0) -> dict[str, Any]:
        """What torch would dump, the first events of the trace lost."""
        segments = []
        for number, size in getattr(self, "sizes_of_segments", {}).items():
            blocks = [
                {"address": a, "size": s, "requested_size": r if live else 0,
                 "state": "active_allocated" if live else "inactive"}
                for a, s, live, segment, r in sorted(self.ranges) if segment == number
            ]  # fmt: skip
            segments.append(
                {"device": 0, "address": (number + 1) << 36, "total_size": size, "stream": 0,
                 "segment_type": "small" if size == 2 * MIB else "large", "blocks": blocks}
            )  # fmt: skip
        return {"segments": segments, "device_traces": [self.events[first:]]}


def run(tmp_path: Path, raw: Any) -> Replay:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(raw))
    return replay(read_snapshot(path))


SIZES = st.sampled_from([1, 512, 700, 4096, 300_000, MIB, MIB + 1, 3 * MIB, 11 * MIB, 19 * MIB])
STEPS = st.lists(st.tuples(st.booleans(), SIZES, st.integers(0, 10**6)), max_size=60)


@settings(deadline=None)
@given(steps=STEPS, share=st.floats(0, 1))
def test_every_block_gets_the_size_that_the_allocator_gave_it(
    tmp_path_factory: pytest.TempPathFactory, steps: Any, share: float
) -> None:
    allocator = Allocator()
    live: list[int] = []
    for is_free, size, pick in steps:
        if is_free and live:
            allocator.free(live.pop(pick % len(live)))
        else:
            live.append(allocator.allocate(size))
    first = int(share * len(allocator.events))
    got = run(tmp_path_factory.mktemp("replay"), allocator.snapshot(first))
    assert got.contradictions == ()
    blocks = got.blocks
    in_trace = blocks.birth >= 0
    allocs = [e for e in allocator.events[first:] if e["action"] == "alloc"]
    assert (
        blocks.size_bytes[in_trace].tolist()
        == allocator.sizes[len(allocator.sizes) - len(allocs) :]
    )
    assert blocks.is_exact[in_trace].all()
    at_end = blocks.death == got.num_events
    assert sorted(blocks.address[at_end].tolist()) == sorted(live)
    assert got.segments.size_bytes.sum() == sum(
        segment["total_size"] for segment in allocator.snapshot()["segments"]
    )


@pytest.mark.parametrize("name", [name for name in NAMES if name != SYNTHETIC])
def test_what_real_gpus_recorded_agrees_with_itself(tmp_path: Path, name: str) -> None:
    raw = read_golden(tmp_path, name)
    snapshot = read_snapshot(raw)
    got = replay(snapshot)
    assert got.contradictions == ()
    blocks = got.blocks
    assert blocks.is_exact[blocks.birth >= 0].all()
    at_end = blocks.death == got.num_events
    assert blocks.size_bytes[at_end].sum() == snapshot.segments.active_bytes.sum()
    live = blocks.is_live(got.num_events - 1)
    assert (live == at_end).all()
    reserved = got.segments.size_bytes[got.segments.death == got.num_events].sum()
    assert reserved == snapshot.segments.total_bytes.sum()


def test_a_synthetic_file_is_found_out(tmp_path: Path) -> None:
    got = replay(read_snapshot(read_golden(tmp_path, SYNTHETIC)))
    assert len(got.contradictions) == 1
    assert got.contradictions[0].startswith("event 0: a block is allocated at 0x")
    assert got.contradictions[0].endswith("where there is no free range")


def read_golden(tmp_path: Path, name: str) -> Path:
    path = tmp_path / "golden.pickle"
    path.write_bytes(lzma.decompress((GOLDEN / f"{name}.pickle.xz").read_bytes()))
    return path


def test_live_blocks_never_overlap_and_lie_in_segments(tmp_path: Path) -> None:
    got = replay(read_snapshot(read_golden(tmp_path, "roy_train256_ring")))
    for event in range(-1, got.num_events, 997):
        live = got.blocks.is_live(event)
        order = np.argsort(got.blocks.address[live])
        begin = got.blocks.address[live][order]
        end = begin + got.blocks.size_bytes[live][order]
        assert (begin[1:] >= end[:-1]).all()
        there = (got.segments.birth <= event) & (event < got.segments.death)
        first = np.sort(got.segments.address[there])
        last = (got.segments.address + got.segments.size_bytes)[there]
        owner = np.searchsorted(first, begin, side="right") - 1
        assert (owner >= 0).all()
        assert (end <= last[np.argsort(got.segments.address[there])][owner]).all()


def break_trace(change: Any) -> Any:
    allocator = Allocator()
    addresses = [allocator.allocate(size) for size in (5 * MIB, 700, 3 * MIB)]
    allocator.free(addresses[0])
    raw = allocator.snapshot()
    change(raw["device_traces"][0], raw["segments"])
    return raw


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t, _: t.append({**t[1], "action": "alloc", "addr": 12345}), "no free range"),
        (lambda t, _: t.append({**t[-1], "action": "alloc", "size": 90 * MIB}), "is smaller"),
        (lambda t, _: t.append({**t[1], "action": "free_completed"}), "where none is live"),
        (lambda t, _: t.append({**t[1], "addr": -1}), "at -0x1, where there is no free range"),
        (lambda t, _: t.append({**t[0], "action": "segment_alloc", "addr": 1 << 50}), "not there"),
        (lambda t, _: t.insert(3, dict(t[1])), "never freed"),
        (lambda _, s: s[1]["blocks"][0].update(size=1536), "another size at the end"),
        (lambda _, s: s[1].update(blocks=[]), "are not in the segments at the end"),
    ],
)
def test_a_file_that_contradicts_itself_is_told(tmp_path: Path, change: Any, message: str) -> None:
    assert any(message in text for text in run(tmp_path, break_trace(change)).contradictions)


def test_sizes_are_rounded_as_the_allocator_does() -> None:
    requested = np.array([0, 1, 512, 513, 1000, 1200, 3 * MIB + 1])
    plain = [512, 512, 512, 1024, 1024, 1536, 3 * MIB + 512]
    assert round_sizes(requested, read_settings({})).tolist() == plain
    # An example of the documentation: with 4 divisions, 1200 bytes lie between 1024 and 2048 and
    # are rounded up to 1280; below 4 x 512 bytes nothing is divided, so multiply by 1024.
    divided = {"roundup_power2_divisions": {"1": 4, "2": 4, "4": 0, "32768": 4}}
    assert round_sizes(np.array([1200 * 1024]), read_settings(divided)).tolist() == [1280 * 1024]
    odd = {"roundup_power2_divisions": {"1": 2**70, "²": 4, "3": 4, "2": True, "4": "x"}}
    assert round_sizes(requested, read_settings(odd)).tolist() == plain, (
        "what no allocator writes is left out"
    )
    assert round_sizes(np.array([2000, 5 * MIB + 1]), read_settings(divided)).tolist() == [
        2048,
        5 * MIB + 512,
    ]


def test_an_expandable_segment_grows_and_shrinks(tmp_path: Path) -> None:
    base = 1 << 40
    page = LARGE
    trace = [
        {"action": "segment_map", "addr": base, "size": page, "stream": 0},
        {"action": "alloc", "addr": base, "size": 15 * MIB, "stream": 0},
        {"action": "segment_map", "addr": base + page, "size": page, "stream": 0},
        {"action": "alloc", "addr": base + 15 * MIB, "size": 25 * MIB - 512, "stream": 0},
        {"action": "free_completed", "addr": base + 15 * MIB, "size": 25 * MIB - 512, "stream": 0},
        {"action": "segment_unmap", "addr": base + page, "size": page, "stream": 0},
    ]
    segment = {
        "device": 0, "address": base, "total_size": page, "is_expandable": True,
        "segment_type": "large", "stream": 0,
        "blocks": [
            {"address": base, "size": 15 * MIB, "requested_size": 15 * MIB,
             "state": "active_allocated"},
            {"address": base + 15 * MIB, "size": 5 * MIB, "requested_size": 0,
             "state": "inactive"},
        ],
    }  # fmt: skip
    got = run(tmp_path, {"segments": [segment], "device_traces": [trace]})
    assert got.contradictions == ()
    # 512 bytes are left over: an expandable segment splits down to the last block.
    assert got.blocks.size_bytes.tolist() == [15 * MIB, 25 * MIB - 512]
    lives = sorted(zip(got.segments.birth.tolist(), got.segments.death.tolist(), strict=True))
    assert lives == [(0, 6), (2, 5)]
