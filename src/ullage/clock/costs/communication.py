"""The cost of collectives and messages, within a machine and between machines.

    collective_cost(find_gpu("h100"), CollectiveCall("all-reduce", 2**30, 64), Interconnect())

Within a machine by NVIDIA's measurements of NCCL (clock/kernels.py). Between machines a ring passes
through all GPUs, and the network adapters of a machine's ranks share what leaves the machine: the
time is that of NCCL's own model (rings.py), or of what passes within the machine, which overlaps
with it. Where the ranks are, the log says: those of a communicator for every eighth rank have one
adapter each.

What it takes from the kernels beside it is its load (channels.py).

Assumes: where the log does not say where the ranks are, those that fit into one machine are in one,
and others fill machines; each rank on a machine has a network adapter of its own.
Ignores: that kernels beside it slow it down; contention in the network.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ullage.clock.cost import Category, Cost
from ullage.clock.costs.channels import Passage, message_load
from ullage.clock.costs.rings import Route, between_machines
from ullage.clock.costs.traffic import Traffic, moved
from ullage.clock.duration import Duration, Width, around
from ullage.clock.given_work import CollectiveCall
from ullage.clock.interconnect import Interconnect
from ullage.clock.kernels import collective
from ullage.clock.work import Collective, Kind
from ullage.facts.gpus import Gpu
from ullage.facts.gpus.peaks import link_bytes_per_s

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
# NCCL's latency of a step over the network, of which Interconnect has its own.
_LATENCY_S: Final = 14e-6
# Assumed: other networks, and traffic beside it, may take nearly half of the rate.
_NETWORK_WIDTH: Final = Width(0.9, 1.8)
# Assumed: NCCL's latencies are those of its authors' machines.
_LATENCY_WIDTH: Final = Width(0.7, 2.0)
_BESIDE: Final = "kernels beside it lose the multiprocessors of its channels, and its bandwidth"


def collective_cost(gpu: Gpu, work: CollectiveCall, links: Interconnect) -> Cost:
    """The cost of a collective, when all have arrived."""
    num_gpus = max(work.num_gpus, 1)
    name = f"{work.name or 'collective'} of {num_gpus} GPUs"
    if num_gpus < 2:
        # A communicator of one copies from one buffer to the other, if anything.
        time = moved(gpu, Traffic(0, 2 * work.num_bytes, 2 * work.num_bytes), "one GPU alone")
        return Cost(time, Category.COMMUNICATION, name)
    num_local = min(work.num_local or num_gpus, num_gpus, links.gpus_per_machine)
    is_within = num_local == num_gpus
    if work.name in _MESSAGES:
        name, sent_bytes = work.name, float(work.num_bytes)
        time = _message(gpu, work, links, num_local)
    else:
        kind = _KINDS.get(work.name, Kind.ALL_REDUCE)
        shape = Collective(kind, max(work.num_bytes, 1), num_gpus)
        sent_bytes = shape.sent_bytes
        far = (gpu, shape, links, num_local)
        time = _within(gpu, shape, links) if is_within else _between(*far)
    time = replace(time, basis=f"{time.basis}; {_BESIDE}")
    passage = Passage(sent_bytes, time.s, num_local, is_within, links.is_pcie)
    load = message_load(gpu, work, passage)
    return Cost(time, Category.COMMUNICATION, name, load=load)


def _within(gpu: Gpu, shape: Collective, links: Interconnect) -> Duration:
    rate = link_bytes_per_s(gpu) if links.is_pcie else links.within_bytes_per_s
    return collective(gpu, shape, rate)


def _message(gpu: Gpu, work: CollectiveCall, links: Interconnect, num_local: int) -> Duration:
    """A message takes as long as an all-gather of two that sends as many bytes. Whether it stays in
    the machine is not known: it does if all ranks are in one, and does not if this one is alone.
    """
    pair = Collective(Kind.ALL_GATHER, max(2 * work.num_bytes, 1), 2)
    time = _within(gpu, pair, links)
    if num_local == work.num_gpus:
        return replace(time, basis=f"{time.basis}; a message as half an all-gather of two")
    rate, note = links.network(gpu)
    seconds = links.latency_s + work.num_bytes / (rate * _NETWORK_SHARE)
    far = around(seconds, _NETWORK_WIDTH, "")
    basis = "; ".join(part for part in ("a message between machines", note) if part)
    low_s = far.low_s if num_local == 1 else min(time.low_s, far.low_s)
    return Duration(low_s, far.s, far.high_s, basis)


def _between(gpu: Gpu, shape: Collective, links: Interconnect, num_local: int) -> Duration:
    """Each rank of a machine has an adapter, and all of these carry what leaves the machine."""
    rate, note = links.network(gpu)
    longer = links.latency_s / _LATENCY_S
    route = Route(shape.num_gpus, num_local, rate * _NETWORK_SHARE * num_local, longer)
    sent = shape.sent_bytes
    if shape.kind is Kind.ALL_TO_ALL:
        # Each GPU sends to those of other machines through its own adapter.
        sent *= (1 - num_local / shape.num_gpus) * num_local
    times = between_machines(route, shape.kind, sent)
    transfer = around(times.transfer_s, _NETWORK_WIDTH, "")
    latency = around(times.latency_s, _LATENCY_WIDTH, "")
    low_s, seconds = transfer.low_s + latency.low_s, transfer.s + latency.s
    high_s = transfer.high_s + latency.high_s
    basis = [f"a ring over {route.num_machines} machines, {rate * 8e-9:.0f} Gb/s a GPU", note]
    if num_local > 1:
        inside = _within(gpu, replace(shape, num_gpus=num_local), links)
        low_s, seconds = max(low_s, inside.low_s), max(seconds, inside.s)
        high_s = max(high_s, inside.high_s)
        basis.append(inside.basis)
    return Duration(low_s, seconds, high_s, "; ".join(part for part in basis if part))
