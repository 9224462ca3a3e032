"""How long a step takes: a roofline for each operation, and the link to the host.

An operation takes the longest of three times: its floating-point operations at the rate of their
units, its bytes at the memory's bandwidth, and the launch of its kernels by the host. Copies over
the link and between ranks overlap with their block, and cost the time by which they are longer.
The rates are those that the makers state, in the catalogue. Real rates are all lower, so the
seconds are a lower bound, and a search uses only their order.

Ignores: kernels that torch.compile fuses; a throttled clock; other work of the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ullage.gpus.catalog import Gpu
from ullage.gpus.peaks import flops_per_s, link_bytes_per_s, peer_bytes_per_s
from ullage.plan.costs.blocks import Block, block_of_module
from ullage.trace.model import Record
from ullage.trace.work import Operation

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
    if operation.host_bytes:
        return operation.host_bytes * num_ranks / _HOST_BYTES_PER_S
    launched = operation.num_launches * LAUNCH_S
    if operation.link_bytes:
        return max(operation.link_bytes / link_bytes_per_s(gpu), launched)
    if operation.peer_bytes:
        return max(operation.peer_bytes / peer_bytes_per_s(gpu, num_ranks), launched)
    computed = 0.0
    if operation.flops:
        computed = operation.flops / flops_per_s(gpu, operation.precision)
    return max(computed, operation.num_bytes / gpu.bandwidth_bytes_per_s, launched)
