"""What would be reserved with the other order of addresses, against the rules in Python."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.accuracy.address_policy import POLICIES
from benchmarks.accuracy.address_replay import Allocator
from benchmarks.accuracy.addresses import read_golden
from tests.rows import each

from ullage.explain.whatif.other_ends import measure_other_order, replay_variants
from ullage.explain.whatif.replays import Where
from ullage.ground.programs.allocator_replay import ATTEMPT
from ullage.ground.protocol.run import Platform
from ullage.ground.units import GIB, MIB
from ullage.log.replay import replay
from ullage.log.requests import find_requests
from ullage.log.rules import ORDERS, make_settings, play_requests
from ullage.log.snapshot import Snapshot
from ullage.log.snapshot_reader import read_snapshot
from ullage.log.ties import BY_ADDRESS
from ullage.players.phantom.device import choose_device
from ullage.players.phantom.torch_build import TorchBuild

EMPTY_CACHE = -1
BUILD = TorchBuild("2.6.0", "12.4", Path(), {}, frozenset(), frozenset())
NOWHERE = Where("no such python", BUILD, choose_device(None))
SIZES = [512, 64 * 512, MIB, 3 * MIB, 5 * MIB, 9 * MIB, 11 * MIB, 17 * MIB, 30 * MIB]


def random_requests(seed: int, *, empties: bool) -> tuple[list[int], list[int]]:
    """Sizes of blocks, and operations of ground/programs/allocator_replay.py."""
    rng = random.Random(seed)
    sizes = [rng.choice(SIZES) for _ in range(120)]
    ops, live, born = [], [], 0
    while born < len(sizes):
        if live and rng.random() < 0.47:
            ops.append(len(sizes) + live.pop(rng.randrange(len(live))))
        elif empties and rng.random() < 0.05:
            ops.append(EMPTY_CACHE)
        else:
            ops.append(born)
            live.append(born)
            born += 1
    return sizes, ops


def play(sizes: list[int], ops: list[int], platform: Platform) -> tuple[Allocator, list[Any]]:
    """The requests in Python; and the events that torch would record."""
    allocator, where, events = Allocator(POLICIES[platform]()), {}, []
    for op in ops:
        if op == EMPTY_CACHE:
            allocator.empty_cache()
        elif op >= len(sizes):
            address, size = where[op - len(sizes)], sizes[op - len(sizes)]
            allocator.release(address)
            events += [(f"free_{what}", address, size) for what in ("requested", "completed")]
        else:
            known = len(allocator.new_segments)
            where[op] = allocator.allocate(sizes[op], 0, 0)
            events += [
                ("segment_alloc", start, segment_bytes(allocator, start))
                for start in allocator.new_segments[known:]
            ]
            events.append(("alloc", where[op], sizes[op]))
    return allocator, events


def segment_bytes(allocator: Allocator, start: int) -> int:
    return sum(block.size for block in allocator.blocks.values() if block.segment == start)


def snapshot_of(allocator: Allocator, events: list[Any], path: Path) -> Snapshot:
    """The file that torch would write of it."""
    trace = [
        {"action": action, "addr": address, "size": size, "stream": 0, "frames": []}
        for action, address, size in events
    ]
    segments = [dict(segment_rows(allocator, start)) for start in allocator.new_segments]
    path.write_bytes(pickle.dumps({"segments": segments, "device_traces": [trace]}))
    return read_snapshot(path)


def segment_rows(allocator: Allocator, start: int) -> Iterator[tuple[str, Any]]:
    blocks = [
        {"address": address, "size": block.size, "requested_size": block.size, "frames": [],
         "state": "inactive" if block.is_free else "active_allocated"}
        for address, block in sorted(allocator.blocks.items()) if block.segment == start
    ]  # fmt: skip
    kind = "small" if allocator.blocks[start].key[2] else "large"
    yield from {"device": 0, "address": start, "stream": 0, "segment_type": kind}.items()
    yield from {"total_size": segment_bytes(allocator, start), "blocks": blocks}.items()


@each(("seed", "platform"), product(range(25), Platform))
def test_the_rules_in_c_are_those_in_python(seed: int, platform: Platform) -> None:
    sizes, ops = random_requests(seed, empties=True)
    allocator, _ = play(sizes, ops, platform)
    settings = make_settings(order=ORDERS[platform], tie=BY_ADDRESS)
    played = play_requests(
        settings, sizes=np.array(sizes), streams=np.zeros(len(sizes)), ops=np.array(ops)
    )
    assert played is not None
    assert played.peak_reserved_bytes == allocator.peak_bytes


def test_the_other_order_is_measured_from_the_file_of_a_run(tmp_path: Path) -> None:
    num_different = 0
    for seed in range(25):
        sizes, ops = random_requests(seed, empties=False)
        allocator, events = play(sizes, ops, Platform.LINUX)
        other, _ = play(sizes, ops, Platform.WINDOWS)
        snapshot = snapshot_of(allocator, events, tmp_path / "run.pickle")
        (found,) = measure_other_order(snapshot, NOWHERE)
        assert (found.device, found.peaks[0].reserved_bytes) == (0, other.peak_bytes)
        num_different += other.peak_bytes != allocator.peak_bytes
    assert num_different >= 2


@pytest.mark.parametrize(
    ("name", "reserved_bytes"), [("silmont_probe", 3781165056), ("decomfl_opt", 1897922560)]
)
def test_on_real_gpus_it_is_the_same_where_nothing_hangs_on_it(
    name: str, reserved_bytes: int
) -> None:
    (found,) = measure_other_order(read_golden(name), NOWHERE)
    assert (found.device, found.peaks[0].reserved_bytes) == (0, reserved_bytes)


def test_variants_of_a_recording_come_by_the_rules_without_an_interpreter() -> None:
    snapshot = read_golden("silmont_probe")
    recorded = replay(snapshot)
    requests = find_requests(snapshot, recorded, 0)
    with_more = np.append(requests.ops, -(ATTEMPT + 8 * 8 * GIB))  # more than any free block has
    variants = [requests, requests, replace(requests, ops=with_more)]
    same, more = replay_variants(snapshot, 0, recorded, variants, NOWHERE)
    assert same.reserved_bytes == 3781165056
    assert more.reserved_bytes == same.reserved_bytes + 8 * GIB


def test_what_began_before_the_trace_has_no_figure() -> None:
    assert measure_other_order(read_golden("hanfa_small_inf512"), NOWHERE) == ()
