"""How long a step takes: a roofline for each operation, and the link to the host.

An operation takes the longest of three times: its floating-point operations at the rate of their
units, its bytes at the memory's bandwidth, and the launch of its kernels by the host. Copies over
the link and between ranks overlap with their block, and cost the time by which they are longer.
The rates are those that the makers state, in the catalogue, or those that `ullage calibrate`
measured (gpus/rates.py). Real rates are all lower than stated ones, so the seconds are a lower
bound, and a search uses only their order.

Ignores: kernels that torch.compile fuses; a throttled clock; other work of the host.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ullage.errors import SpecError
from ullage.gpus.catalog import Gpu
from ullage.gpus.peaks import flops_per_s, link_bytes_per_s, peer_bytes_per_s
from ullage.gpus.rates import STATED, Rates, Speed, stored_rates
from ullage.plan.costs.blocks import Block, block_of_module
from ullage.trace.model import Record
from ullage.trace.work import Operation

# Instead of a file with rates: the rates that makers state.
CATALOGUE = "catalogue"
# Between two launches of kernels by PyTorch's eager host code. Assumed.
LAUNCH_S = 5e-6
# Of an optimizer's step on the host, all ranks of a machine together: half of what eight channels
# of DDR4-3200 give. Assumed for any host.
_HOST_BYTES_PER_S = 100_000_000_000
_PARTS = ("forward", "backward", "optimizer")


@dataclass(frozen=True, slots=True)
class Seconds:
    """The time of a step: of each block, and of all."""

    blocks: npt.NDArray[np.float64]
    step: float


def step_seconds(record: Record, blocks: Sequence[Block], gpu: Gpu) -> Seconds:
    """The seconds of the last whole step of a run that records its work."""
    block_of = block_of_module(blocks, record.modules)
    operations = () if record.work is None else record.work.operations
    num_ranks = max(map(len, record.groups), default=1)
    busy = np.zeros((len(blocks) + 1, len(_PARTS)))
    link, sent = np.zeros_like(busy), np.zeros_like(busy)
    for operation in operations:
        place = block_of[operation.module], _PARTS.index(operation.part)
        seconds = operation_seconds(operation, gpu, num_ranks) * operation.num
        (sent if operation.peer_bytes else link if operation.link_bytes else busy)[place] += seconds
    taken = np.maximum(np.maximum(busy, link), sent).sum(axis=1)
    return Seconds(taken[:-1], float(taken.sum()))


def operation_seconds(operation: Operation, gpu: Gpu, num_ranks: int = 1) -> float:
    """The seconds of one operation.

    Args:
        num_ranks: the ranks that share the host's memory bandwidth.
    """
    rates = gpu.measured
    if operation.host_bytes:
        return operation.host_bytes * num_ranks / _HOST_BYTES_PER_S
    launched = operation.num_launches * (rates.launch_s if rates else LAUNCH_S)
    if operation.link_bytes:
        link = _slower(rates.to_device, rates.to_host) if rates else STATED
        return max(link.seconds(operation.link_bytes, link_bytes_per_s(gpu)), launched)
    if operation.peer_bytes:
        peers = (rates.peers if rates else None) or STATED
        return max(peers.seconds(operation.peer_bytes, peer_bytes_per_s(gpu, num_ranks)), launched)
    computed = 0.0
    if operation.flops:
        speed = _compute_speed(operation, rates) if rates else STATED
        computed = speed.seconds(operation.flops, flops_per_s(gpu, operation.precision))
    memory = rates.memory if rates else STATED
    return max(computed, memory.seconds(operation.num_bytes, gpu.bandwidth_bytes_per_s), launched)


def _compute_speed(operation: Operation, rates: Rates) -> Speed:
    """The measured speed of matrix products or attention in a precision; the stated one where there
    is no measurement.
    """
    if "attention" in operation.name:
        return rates.attention.get(
            "backward" if "backward" in operation.name else "forward", STATED
        )
    return rates.matmul.get(operation.precision, STATED)


def _slower(first: Speed, other: Speed) -> Speed:
    """The slower direction: the record of the work does not state the direction of copies."""
    return min(first, other, key=lambda speed: speed.frac)


def with_rates(gpu: Gpu, rates: str | os.PathLike[str] | None) -> Gpu:
    """A GPU with what was measured of it.

    Args:
        gpu: of the catalogue, with another memory or not.
        rates: a file of `ullage calibrate`; "catalogue": none; None: what is kept of this GPU, if
            it was measured.

    Raises:
        SpecError: the file cannot be read, or is of another GPU.
    """
    if rates == CATALOGUE:
        return gpu
    slug = gpu.slug.partition(" ")[0]
    measured = stored_rates(slug) if rates is None else Rates.load(rates)
    if measured is not None and measured.gpu != slug:
        raise SpecError(
            f"{measured.source}: these are rates of {measured.gpu}, and the GPU is {slug}; give "
            "those of that one, or `--rates catalogue`"
        )
    return replace(gpu, measured=measured)
