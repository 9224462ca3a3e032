"""The cost of collectives and messages, within a machine and between machines.

    collective_cost(find_gpu("h100"), CollectiveCall("all-reduce", 2**30, 64), Interconnect())

Within a machine by NVIDIA's measurements of NCCL (clock/kernels.py). Between machines a ring passes
through all GPUs, and each GPU's network adapter carries what one of its neighbours sends: the time
is the bytes that each GPU sends by the slower link, and a latency for each machine; what passes
within the machine overlaps with it.

Assumes: a communicator that fits into one machine is in one machine.
Ignores: kernels that run beside it are slowed by it, and it by them; contention in the network.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from ullage.clock.cost import Category, Cost
from ullage.clock.costs.traffic import Traffic, moved
from ullage.clock.duration import Duration, Width, around
from ullage.clock.given_work import CollectiveCall
from ullage.clock.interconnect import Interconnect
from ullage.clock.kernels import collective
from ullage.clock.work import Collective, Kind
from ullage.gpus import Gpu
from ullage.gpus.peaks import link_bytes_per_s

__all__ = ["collective_cost"]

_KINDS: Final = {
    "all-reduce": Kind.ALL_REDUCE,
    "all-gather": Kind.ALL_GATHER,
    "reduce-scatter": Kind.REDUCE_SCATTER,
    "all-to-all": Kind.ALL_TO_ALL,
    # A broadcast and a reduction pass the whole buffer along a ring, as the halves of an all-reduce
    # do; gathering and scattering send as much through the one GPU.
    "broadcast": Kind.ALL_GATHER,
    "reduce": Kind.REDUCE_SCATTER,
    "gather": Kind.ALL_GATHER,
    "scatter": Kind.ALL_GATHER,
}
_MESSAGES: Final = {"send", "receive"}
# The share of a network adapter's rate that NCCL reaches: 46 to 48 of 50 GB/s.
# Source: NVIDIA/nccl-tests, issue 290, a maintainer on 400 Gb/s.
_NETWORK_SHARE: Final = 0.94
# Assumed: other networks, and traffic beside it, may take nearly half of the rate.
_NETWORK_WIDTH: Final = Width(0.9, 1.8)
_BESIDE: Final = "what it slows beside it is ignored"


def collective_cost(gpu: Gpu, work: CollectiveCall, links: Interconnect) -> Cost:
    """The cost of a collective, when all have arrived."""
    num_gpus = max(work.num_gpus, 1)
    name = f"{work.name or 'collective'} of {num_gpus} GPUs"
    if num_gpus < 2:
        # A communicator of one copies from one buffer to the other, if anything.
        time = moved(gpu, Traffic(0, 2 * work.num_bytes, 2 * work.num_bytes), "one GPU alone")
        return Cost(time, Category.COMMUNICATION, name)
    if work.name in _MESSAGES:
        return Cost(_message(gpu, work, links), Category.COMMUNICATION, work.name)
    shape = Collective(_KINDS.get(work.name, Kind.ALL_REDUCE), max(work.num_bytes, 1), num_gpus)
    if num_gpus <= links.gpus_per_machine:
        return Cost(_within(gpu, shape, links), Category.COMMUNICATION, name)
    return Cost(_between(gpu, shape, links), Category.COMMUNICATION, name)


def _within(gpu: Gpu, shape: Collective, links: Interconnect) -> Duration:
    rate = link_bytes_per_s(gpu) if links.is_pcie else links.within_bytes_per_s
    time = collective(gpu, shape, rate)
    return replace(time, basis=f"{time.basis}; {_BESIDE}")


def _message(gpu: Gpu, work: CollectiveCall, links: Interconnect) -> Duration:
    """A message takes as long as an all-gather of two that sends as many bytes. Whether it stays in
    the machine is not known: it does if all ranks fit into one.
    """
    pair = Collective(Kind.ALL_GATHER, max(2 * work.num_bytes, 1), 2)
    time = _within(gpu, pair, links)
    if work.num_gpus <= links.gpus_per_machine:
        return replace(time, basis=f"{time.basis}; a message as half an all-gather of two")
    rate, note = links.network(gpu)
    seconds = links.latency_s + work.num_bytes / (rate * _NETWORK_SHARE)
    far = around(seconds, _NETWORK_WIDTH, "")
    basis = "; ".join(part for part in ("a message between machines", note) if part)
    return Duration(min(time.low_s, far.low_s), far.s, far.high_s, basis)


def _between(gpu: Gpu, shape: Collective, links: Interconnect) -> Duration:
    rate, note = links.network(gpu)
    size = links.gpus_per_machine
    num_machines = math.ceil(shape.num_gpus / size)
    inside = _within(gpu, replace(shape, num_gpus=size), links)
    if shape.kind is Kind.ALL_TO_ALL:
        # Each GPU sends to those of other machines through its own adapter.
        sent = shape.sent_bytes * (1 - size / shape.num_gpus)
    else:
        # The GPUs of a machine have as many adapters as the ring has lanes: each carries a share of
        # what leaves the machine.
        sent = shape.sent_bytes / size
    passes = 2 if shape.kind is Kind.ALL_REDUCE else 1
    # Trees take as many hops as the logarithm of the machines, rings one for each.
    tree, ring = (passes * links.latency_s * n for n in (math.log2(num_machines), num_machines))
    seconds = sent / (rate * _NETWORK_SHARE)
    outside = around(seconds + math.sqrt(tree * ring), _NETWORK_WIDTH, "")
    basis = "; ".join(
        part
        for part in (
            f"a ring over {num_machines} machines, {rate * 8e-9:.0f} Gb/s a GPU",
            note,
            inside.basis,
        )
        if part
    )
    return Duration(
        max(inside.low_s, _NETWORK_WIDTH.low * seconds + tree),
        max(inside.s, outside.s),
        max(inside.high_s, outside.high_s, seconds + ring),
        basis,
    )
