"""Collectives between machines: which ranks are where decides what limits them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ullage.clock.costs import cost_of
from ullage.clock.costs.rings import Route, between_machines
from ullage.clock.duration import Duration
from ullage.clock.given_work import CollectiveCall
from ullage.clock.interconnect import Interconnect
from ullage.clock.reading import given_work
from ullage.clock.work import Kind
from ullage.facts.gpus import find_gpu
from ullage.log.work_log import WorkKind, WorkRow

A100, H100 = find_gpu("a100-80gb"), find_gpu("h100-80gb")
GATHER = CollectiveCall("all-gather", 10**9, 8)


def time(work: CollectiveCall, links: Interconnect | None = None) -> Duration:
    return cost_of(H100, work, links).duration


def test_ranks_of_which_nothing_is_known_share_a_machine() -> None:
    assert time(GATHER) == time(replace(GATHER, num_local=8))


def test_ranks_of_eight_machines_are_bound_by_one_adapter() -> None:
    """As the groups of HSDP that hold the same shard: one rank of each machine."""
    strided = time(replace(GATHER, num_local=1))
    assert strided.s == pytest.approx(10**9 * 7 / 8 / (0.94 * 50e9), rel=0.02)
    assert strided.low_s > 5 * time(GATHER).high_s


def test_the_more_ranks_on_a_machine_the_more_adapters_carry() -> None:
    seconds = [time(CollectiveCall("all-gather", 10**9, 16, local)).s for local in (1, 2, 4, 8)]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[0] / seconds[1] == pytest.approx(2, rel=0.02)


def test_a_machine_of_few_gpus_has_no_more_ranks() -> None:
    work = CollectiveCall("all-gather", 10**9, 16, 8)
    assert time(work, Interconnect(gpus_per_machine=4)) == time(
        replace(work, num_local=4), Interconnect(gpus_per_machine=4)
    )


def test_a_message_from_a_rank_that_is_alone_leaves_the_machine() -> None:
    near = time(CollectiveCall("send", 10**8, 8, 8))
    far = time(CollectiveCall("send", 10**8, 8, 1))
    either = time(CollectiveCall("send", 10**8, 64, 8))
    assert near.high_s < far.low_s
    assert (either.low_s, either.s) == (near.low_s, far.s)


def test_the_bus_bandwidth_is_what_nccls_maintainer_states() -> None:
    """190 GB/s between DGX A100 with eight adapters of 200 Gb/s. Source: NVIDIA/nccl, issue 689."""
    for name, times in (("all-gather", 1), ("reduce-scatter", 1), ("all-reduce", 2)):
        cost = cost_of(A100, CollectiveCall(name, 10**10, 128), None)
        bus = times * 10**10 * 127 / 128 / cost.duration.s
        assert bus == pytest.approx(190e9, rel=0.05), name


def test_a_ring_waits_for_each_rank_and_a_tree_for_each_doubling() -> None:
    route = Route(128, 8, 1e15)
    ring = between_machines(route, Kind.ALL_GATHER, 1.0)
    assert ring.latency_s == pytest.approx((6.6 + 112 * 0.6 + 15 * 2.7) * 1e-6)
    tree = between_machines(route, Kind.ALL_REDUCE, 1.0)
    assert tree.latency_s == pytest.approx((6.8 + 2 * (7 * 0.6 + 4 * 5.0)) * 1e-6)
    twice = between_machines(replace_latency(route, 2.0), Kind.ALL_GATHER, 1.0)
    assert twice.latency_s - ring.latency_s == pytest.approx(15 * 2.7e-6)


def replace_latency(route: Route, times: float) -> Route:
    return route._replace(latency_times=times)


def test_large_messages_take_the_protocol_that_carries_most() -> None:
    route = Route(128, 8, 100e9)
    small = between_machines(route, Kind.ALL_GATHER, 1e4)
    large = between_machines(route, Kind.ALL_GATHER, 1e10)
    assert large.transfer_s == pytest.approx(1e10 / 100e9)
    assert large.latency_s > 2 * small.latency_s
    assert small.transfer_s == pytest.approx(1e4 / 20.4e9)


@pytest.mark.parametrize(
    ("limits", "channels"), [((0, 0), 24), ((0, 4), 4), ((28, 0), 28), ((8, 16), 16), ((0, 64), 24)]
)
def test_the_job_limits_channels(limits: tuple[int, int], channels: int) -> None:
    least, most = limits
    work = replace(GATHER, least_channels=least, most_channels=most)
    load = cost_of(H100, work, None).load
    assert load is not None
    assert load.multiprocessors == pytest.approx(channels / H100.num_multiprocessors)


def test_the_log_says_where_the_ranks_are() -> None:
    row = WorkRow(WorkKind.COLLECTIVE, -1, "", (1, 1000, 8, 1, 2, 16, *[0] * 8), b"")
    assert given_work(row) == CollectiveCall("all-gather", 1000, 8, 1, 2, 16)
    earlier = WorkRow(WorkKind.COLLECTIVE, -1, "", (1, 1000, 8, *[0] * 11), b"")
    assert given_work(earlier) == CollectiveCall("all-gather", 1000, 8)
