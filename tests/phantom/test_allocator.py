"""The allocator's rules in C against torch's own allocator: random requests under many settings,
event by event.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ullage.explain.whatif import replays
from ullage.explain.whatif.replays import ReplayOrder, Where, find_rules
from ullage.facts.families.find import find_config
from ullage.facts.gpus.catalog import find_gpu
from ullage.ground.programs.allocator_replay import ATTEMPT, DROP_POOL, EMPTY_CACHE, POOL
from ullage.ground.protocol.run import Platform
from ullage.ground.units import GIB, MIB
from ullage.log.replay import replay
from ullage.log.requests import Requests, find_requests
from ullage.log.rules import play_requests
from ullage.players.eager.training.estimate import estimate_training
from ullage.players.eager.training.log import write_log
from ullage.players.eager.training.recipe import Recipe
from ullage.players.phantom.device import PhantomDevice, choose_device
from ullage.players.phantom.torch_build import find_torch

pytestmark = pytest.mark.phantom
EVENTS = Path(__file__).parent.parent / "programs" / "allocator_events.py"

SHORT = choose_device("l4", memory="1800MiB")
# It has so few addresses that expandable segments come to their ends, and never runs out.
ENDLESS = PhantomDevice(SHORT.gpu, is_unlimited=True)
SETTINGS = (
    "",
    "expandable_segments:True",
    "max_split_size_mb:32",
    "max_split_size_mb:64,max_non_split_rounding_mb:128",
    "roundup_power2_divisions:4",
    "expandable_segments:True,roundup_power2_divisions:8",
    "expandable_segments:True,max_split_size_mb:32",
    "garbage_collection_threshold:0.5",
)
# From torch 2.12 on.
NEWER_SETTINGS = (
    "roundup_power2_divisions:[1:8,4:2,64:16,>:1]",
    "large_segment_size_mb:64",
    "large_segment_size_mb:32,max_split_size_mb:40",
    "large_segment_size_mb:48,expandable_segments:True",
)
SIZES = (
    (1, 4_000), (4_000, 400_000), (400_000, 3 * MIB), (MIB - 512, MIB + 512),
    (3 * MIB, 12 * MIB), (12 * MIB, 70 * MIB), (70 * MIB, 300 * MIB),
)  # fmt: skip


def random_requests(seed: int, *, has_pools: bool, beyond: int = 0) -> Requests:
    """Allocations and frees on three streams, emptied caches, attempts, some of them of `beyond`
    bytes, and private pools.
    """
    rng = random.Random(seed)
    count = 160
    sizes = [rng.randint(*rng.choice(SIZES)) for _ in range(count)]
    ops, live, born = [], [], 0
    while born < count:
        what = rng.random()
        if live and what < 0.46:
            ops.append(count + live.pop(rng.randrange(len(live))))
        elif what < 0.5:
            ops.append(-EMPTY_CACHE)
        elif what < 0.52:
            ops.append(-(ATTEMPT + 8 * (beyond or rng.randint(*rng.choice(SIZES)))))
        elif has_pools and what < 0.56:
            kind = rng.choice((POOL, POOL, DROP_POOL))
            ops.append(-(kind + 8 * rng.randint(kind == DROP_POOL, 2)))
        else:
            live.append(born)
            ops.append(born)
            born += 1
    streams = [rng.choice((0, 0, 0, 1, 2)) for _ in range(count)]
    column = np.array(ops, dtype=np.int64)
    none = np.empty(0, dtype=np.int64)
    return Requests(np.array(sizes), np.array(streams), column, column, none, none, 0, 0, 0)


def by_rules(order: ReplayOrder, where: Where) -> dict[str, Any]:
    """The answer of the rules, in the words of ground/programs/allocator_replay.py."""
    requests = order.requests
    addresses = np.zeros(len(requests.ops), dtype=np.int64)
    reserved = np.zeros_like(addresses)
    played = play_requests(
        find_rules(order, where.build), sizes=requests.sizes, streams=requests.streams,
        ops=requests.ops, addresses=addresses, reserved=reserved,
    )  # fmt: skip
    assert played is not None
    end = len(requests.ops) if played.stopped_at is None else played.stopped_at
    told = {name: getattr(played, name) for name in played.__slots__}
    return {
        **told,
        "segments": list(played.segments),
        "addresses": addresses[:end].tolist(),
        "reserved": reserved[:end].tolist(),
    }


def relative(answer: Mapping[str, Any]) -> dict[str, Any]:
    """With addresses from the first one on: where a device begins is the phantom's choice."""
    first = next((address for address in answer["addresses"] if address), 0)
    addresses = [address and address - first for address in answer["addresses"]]
    return {**answer, "addresses": addresses}


def differences(orders: list[ReplayOrder], where: Where) -> Iterator[str]:
    """Yields the first thing that the rules tell otherwise than torch, of each order."""
    told = replays._replay_in_torch(orders, where)
    for order, answer in zip(orders, told, strict=True):
        what = f"{order.settings!r}, {order.fraction}, {order.platform}, {order.device.gpu.slug}"
        if "error" in answer:
            yield f"{what}: torch says {answer['error']}"
            continue
        expected, found = relative(answer), relative(by_rules(order, where))
        names = [name for name, value in expected.items() if found[name] != value]
        for name in names[:1]:
            yield f"{what}: {name}: torch {expected[name]}, rules {found[name]}"


def make_orders(seeds: range, where: Where, *, has_pools: bool = False) -> list[ReplayOrder]:
    """Requests of each seed under every setting, on a device that never runs out, and on one that
    does: there also within a share of it, without which no garbage is collected.
    """
    assert where.build.release is not None
    texts = SETTINGS + NEWER_SETTINGS * (where.build.release >= (2, 12))
    orders = []
    for seed in seeds:
        requests = random_requests(seed, has_pools=has_pools)
        platform = (Platform.LINUX, Platform.WINDOWS)[seed % 2]
        for text, device in product(texts, (ENDLESS, SHORT)):
            share = (1.0, 0.8)[seed % 2]
            fraction = share if "garbage" in text or seed % 3 == 2 else None
            orders.append(ReplayOrder(requests, text, device, platform, fraction, ignored=()))
    return orders


@pytest.fixture
def where(thin_python: Path, monkeypatch: pytest.MonkeyPatch) -> Where:
    monkeypatch.setattr(replays, "REPLAYER", EVENTS)
    return Where(str(thin_python), find_torch(str(thin_python)), SHORT)


@pytest.mark.parametrize("has_pools", [False, True])
def test_the_rules_are_torch_s_own_event_by_event(where: Where, *, has_pools: bool) -> None:
    assert [*differences(make_orders(range(1), where, has_pools=has_pools), where)] == []


def test_more_than_a_device_has_is_refused_and_leaves_nothing(where: Where) -> None:
    requests = random_requests(0, has_pools=False, beyond=4 * GIB)
    assert sum(op < -ATTEMPT for op in requests.ops) > 1
    orders = [
        ReplayOrder(requests, text, SHORT, Platform.LINUX, None, ignored=()) for text in SETTINGS
    ]
    assert [*differences(orders, where)] == []


def test_an_estimate_is_laid_out_as_its_torch_does(thin_python: Path) -> None:
    """Of this model another choice among blocks of one size is 256 MiB off before 2.13."""
    build = find_torch(str(thin_python))
    assert build.release is not None
    config, gpu = find_config("llama-3.1-8b").config, find_gpu("h100-80gb")
    recipe = Recipe(batch=4, length=512, torch="{}.{}".format(*build.release))
    estimate = estimate_training(config, recipe, gpu)
    snapshot = write_log(estimate)
    order = ReplayOrder(
        find_requests(snapshot, replay(snapshot, 0), 0), "", ENDLESS, Platform.LINUX
    )
    where = Where(str(thin_python), build, ENDLESS)
    (answer,) = replays._replay_in_torch([order], where)
    assert answer["peak_reserved_bytes"] == estimate.reserved_bytes


@pytest.mark.nightly
def test_they_are_for_many_requests(where: Where) -> None:
    orders = [*make_orders(range(1, 12), where), *make_orders(range(12), where, has_pools=True)]
    assert [*differences(orders, where)] == []
