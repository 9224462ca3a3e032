"""The phantom's order of addresses: against the same policy in Python, and against real GPUs."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest
from benchmarks.accuracy.address_policy import POLICIES
from benchmarks.accuracy.address_replay import replay_snapshot
from benchmarks.accuracy.addresses import Recording, read_golden, read_recordings, score_steps
from tests.rows import each

from ullage.ground.native.libraries import PHANTOM
from ullage.ground.programs.allocator_replay import EMPTY_CACHE
from ullage.ground.protocol import variables
from ullage.ground.protocol.run import Platform
from ullage.ground.units import MIB
from ullage.log.rules import ORDERS, make_settings, play_requests

RECORDINGS = read_recordings()
SIZES = [2, 2, 2, 12, 16, 20, 20, 20, 26, 32, 44, 64, 98, 100, 130, 1036]
TOP = 1 << 47


class Step(NamedTuple):
    """Addresses that are taken; or, where `of` is the number of a step before, given back."""

    size_bytes: int
    of: int | None = None


def play_addresses(steps: Sequence[Step], platform: Platform) -> list[int]:
    """The address that each step takes, and 0 where it gives back: each step is a segment."""
    count, ops = len(steps), []
    for number, step in enumerate(steps):
        ops += [number] if step.of is None else [count + step.of, -EMPTY_CACHE]
    settings = make_settings(order=ORDERS[platform], large_segment=2 * MIB, max_unused=0)
    settings.max_split = 1
    addresses = np.zeros(len(ops), dtype=np.int64)
    play_requests(
        settings, sizes=np.array([step.size_bytes for step in steps]), streams=np.zeros(count),
        ops=np.array(ops), addresses=addresses,
    )  # fmt: skip
    return addresses[np.array(ops) != -EMPTY_CACHE].tolist()


def play_in_python(steps: Sequence[Step], platform: Platform) -> list[int]:
    policy, addresses = POLICIES[platform](), [0] * len(steps)
    for number, step in enumerate(steps):
        if step.of is None:
            addresses[number] = policy.take(step.size_bytes)
        else:
            policy.give_back(addresses[step.of], step.size_bytes)
    return addresses


def random_steps(seed: int, count: int = 400) -> list[Step]:
    rng, steps, live = random.Random(seed), [], []
    for number in range(count):
        if live and rng.random() < 0.45:
            of = live.pop(rng.randrange(len(live)))
            steps.append(Step(steps[of].size_bytes, of))
        else:
            live.append(number)
            steps.append(Step(rng.choice(SIZES) * MIB))
    return steps


def steps_of(recording: Recording) -> list[Step]:
    """What comes and goes in a recording, from nothing."""
    steps: list[Step] = []
    live: dict[int, int] = {}
    for kind, address, size in recording.events:
        if kind == "alloc":
            live[address] = len(steps)
            steps.append(Step(size))
        elif address in live:
            steps.append(Step(size, live.pop(address)))
    return steps


@each(("seed", "platform"), product(range(20), Platform))
def test_random_sequences_get_the_addresses_of_the_policy(seed: int, platform: Platform) -> None:
    steps = random_steps(seed)
    top = 0 if platform is Platform.WINDOWS else (2**63 - 1) // (32 * MIB) * 32 * MIB - TOP
    expected = [address and address + top for address in play_in_python(steps, platform)]
    assert play_addresses(steps, platform) == expected


@each("recording", RECORDINGS, name=lambda recording: recording.name)
def test_recorded_sequences_too(recording: Recording) -> None:
    steps = steps_of(recording)
    here, there = play_addresses(steps, Platform.LINUX), play_in_python(steps, Platform.LINUX)
    places = [number for number, step in enumerate(steps) if step.of is None]
    assert len({here[number] - there[number] for number in places}) <= 1


def test_chunks_go_downwards_and_smaller_allocations_fill_the_rest_of_the_newest() -> None:
    sizes = [98, 98, 2, 20, 20, 26]
    first, second, small, middle, next_, last = play_addresses(
        [Step(size * MIB) for size in sizes], Platform.LINUX
    )
    assert second == first - 128 * MIB
    assert small == second + 98 * MIB
    assert middle == small + 2 * MIB
    assert next_ == first + 98 * MIB  # of the older chunk: the newest has only 8 MiB left
    assert last == second - 32 * MIB


def test_an_empty_chunk_is_unmapped_and_its_addresses_are_mapped_again() -> None:
    steps = [Step(64 * MIB), Step(64 * MIB), Step(64 * MIB, 0), Step(100 * MIB), Step(20 * MIB)]
    first, second, _, large, small = play_addresses(steps, Platform.LINUX)
    assert large == second - 128 * MIB
    assert small == large + 100 * MIB
    again = play_addresses([*steps[:3], Step(20 * MIB)], Platform.LINUX)[-1]
    assert again == first + 32 * MIB


def test_windows_takes_the_lowest_address_that_is_free() -> None:
    steps = [Step(20 * MIB), Step(98 * MIB), Step(20 * MIB, 0), Step(2 * MIB), Step(20 * MIB)]
    first, second, _, small, last = play_addresses(steps, Platform.WINDOWS)
    assert (second, small, last) == (first + 20 * MIB, first, first + 118 * MIB)


def test_large_steps_of_real_gpus_have_the_right_direction() -> None:
    """Measured on what the policy was made from, so a floor, and no figure of quality."""
    scores = [score_steps(recording) for recording in RECORDINGS]
    assert sum(score.num_steps for score in scores) == 3247
    assert sum(score.num_right for score in scores) >= 0.95 * 3247


@pytest.mark.parametrize("name", ["hanfa_small_inf512", "silmont_probe"])
def test_blocks_of_real_gpus_are_where_they_were_with_the_right_order_alone(name: str) -> None:
    snapshot = read_golden(name)
    right = replay_snapshot(snapshot, 0, Platform.LINUX)
    wrong = replay_snapshot(snapshot, 0, Platform.WINDOWS)
    assert right.has_same_segments
    assert right.num_in_place == right.num_blocks
    assert wrong.num_in_place < 0.9 * wrong.num_blocks


# Three allocations of 98 MiB in a process of its own, as the library reads its variables once.
CUDA_MALLOC = """
import ctypes, sys
library, pointers = ctypes.CDLL(sys.argv[1]), [ctypes.c_void_p() for _ in range(3)]
for pointer in pointers:
    assert library.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(98 << 20)) == 0
first, second, third = (pointer.value for pointer in pointers)
print((second - first) >> 20, (third - second) >> 20)
"""


@pytest.mark.parametrize(
    ("platform", "expected"), [("linux", "-128 -128"), ("windows", "98 98"), (None, "-128 -128")]
)
def test_the_phantom_has_the_order_of_its_platform(platform: str | None, expected: str) -> None:
    environment = {**os.environ, variables.PHANTOM: "1"}
    environment.pop(variables.PLATFORM, None)
    if platform is not None:
        environment[variables.PLATFORM] = platform
    command = [sys.executable, "-c", CUDA_MALLOC, str(PHANTOM)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == expected.split()
