"""How long a collective takes between machines, by NCCL's own model of its algorithms.

    between_machines(Route(...), Kind.ALL_GATHER, sent_bytes)

NCCL takes the algorithm and protocol for which this model gives the least time: a latency for each
step, and the bytes at the bandwidth of all network adapters that the ranks of a machine have. A
ring has a step for each rank; a tree, which only an all-reduce may take, one for each rank of a
machine and for each doubling of the machines. LL and LL128 wait less for each step, and carry less.
An all-reduce in the switches of several machines (NVLS tree) is as fast as a tree or ring of large
messages, since the network bounds all of them: it is left out.

Source: NVIDIA/nccl, src/graph/tuning.cc (baseLatencies, hwLatencies, llMaxBws,
perChMaxRingLL128Bws, perChMaxTreeBws; values of NCCL 2.27, for hosts of Intel's).
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from ullage.clock.work import Kind

_LL, _LL128, _SIMPLE = range(3)
# Microseconds by protocol.
_BASE: Final = {"ring": (6.6, 14.0, 8.4), "tree": (6.8, 14.0, 8.4)}
_WITHIN: Final = {"ring": (0.6, 1.9, 3.4), "tree": (0.6, 1.25, 4.0)}
_BETWEEN: Final = {"ring": (2.7, 4.0, 14.0), "tree": (5.0, 8.5, 14.0)}
# The shares of the bandwidth by protocol; a tree sends all bytes up and down.
_SHARES: Final = {"ring": (0.5, 0.92, 1.0), "tree": (0.92 / 3.8, 0.92 * 120 / 128, 0.92)}
_LL_BYTES_PER_S: Final = (39.0e9, 20.4e9)  # at most: two machines, and more
_CHANNEL_BYTES_PER_S: Final = 20e9  # at most: a channel of LL128 on an A100; later ones carry more


class Route(NamedTuple):
    """The ranks and links of a communicator.

    Attributes:
        num_gpus, num_local: its ranks, and those of them on each machine.
        bytes_per_s: of all network adapters that a machine's ranks have.
        latency_times: how many times longer the network waits than NCCL's model has it.
    """

    num_gpus: int
    num_local: int
    bytes_per_s: float
    latency_times: float = 1.0

    @property
    def num_machines(self) -> int:
        """On which its ranks are."""
        return math.ceil(self.num_gpus / self.num_local)


class Times(NamedTuple):
    """Seconds of an algorithm: those of its steps, and those of its bytes."""

    latency_s: float
    transfer_s: float

    @property
    def s(self) -> float:
        """Both."""
        return self.latency_s + self.transfer_s


def between_machines(route: Route, kind: Kind, sent_bytes: float) -> Times:
    """The time of the algorithm and protocol that NCCL takes.

    Args:
        sent_bytes: what each GPU sends in a ring.
    """
    shapes = ("ring", "tree") if kind is Kind.ALL_REDUCE else ("ring",)
    return min(
        (
            _time(shape, protocol, route, kind, sent_bytes)
            for shape in shapes
            for protocol in (_LL, _LL128, _SIMPLE)
        ),
        key=lambda times: times.s,
    )


def _time(shape: str, protocol: int, route: Route, kind: Kind, sent_bytes: float) -> Times:
    rate = route.bytes_per_s * _SHARES[shape][protocol]
    if protocol == _LL:
        rate = min(rate, _LL_BYTES_PER_S[route.num_machines > 2])
    if protocol == _LL128:
        rate = min(rate, 2 * route.num_local * _CHANNEL_BYTES_PER_S)
    passes = 2 if kind is Kind.ALL_REDUCE else 1
    if shape == "ring":
        far = route.num_machines - 1
        near = route.num_gpus - 1 - far
    else:
        far, near = math.ceil(math.log2(route.num_machines)), route.num_local - 1
    between_us = _BETWEEN[shape][protocol] * route.latency_times
    steps_us = passes * (near * _WITHIN[shape][protocol] + far * between_us)
    return Times((_BASE[shape][protocol] + steps_us) * 1e-6, sent_bytes / rate)
