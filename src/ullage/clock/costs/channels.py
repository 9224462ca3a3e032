"""How many multiprocessors a message of NCCL holds, and how much of the memory's bandwidth it uses.

    message_load(gpu, work, Passage(sent_bytes, seconds, 8, is_within=True, is_pcie=False))

NCCL runs one block of threads for each channel, and no other kernel's block beside it on that
multiprocessor. How many channels there are depends on the links:

- Over NVLink, twice as many as the graph search finds rings: 12 of 20 GB/s on an A100, 12 of 30 on
  an H100, 6 on a V100. Logs of NCCL say "24 coll channels" for machines of the first two. An
  all-reduce in the switch (NVLS) has 16 on Hopper, and 24 on Blackwell.
- Over the host's link, and for each network adapter, two; four on Hopper and later where a
  communicator has fewer than 8 ranks on the machine. So 16 on a machine with eight adapters.
- A message to one peer has two over the network, and up to 32 within a machine: 16 are assumed.
- Small messages have fewer: one for each 32 KiB. NCCL_MAX_NCHANNELS, NCCL_MAX_CTAS, their least
  counterparts and those of a communicator's configuration limit all.

Each byte that a ring brings is written to the memory and read again, to be passed on or added.
What buffers besides move is taken to stay in the L2 cache.

Source: NVIDIA/nccl, src/graph/search.cc (sm90SpeedArrayIntra), src/graph/connect.cc
(ncclTopoPostset), src/transport/nvls.cc (NVLS_NCHANNELS_SM90), src/enqueue.cc (the threshold of
64 bytes for each of 512 threads), issues 689 and 1424. Assumed: Blackwell has as many rings.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from ullage.clock.contention import Load
from ullage.clock.given_work import CollectiveCall
from ullage.facts.gpus import Gpu
from ullage.facts.gpus.nccl import has_multicast

_NVLINK: Final = 24
_NVLINK_VOLTA: Final = 12
_NVLS_HOPPER: Final = 16
_EACH_ADAPTER: Final = 2
_MESSAGE_WITHIN: Final = 16
_CHANNEL_BYTES: Final = 512 * 64
_ACCESSES: Final = 2
_MOST: Final = 0.9


class Passage(NamedTuple):
    """How a message passes.

    Attributes:
        sent_bytes: what this GPU sends, and receives.
        seconds: that it takes.
        num_local: ranks of the communicator on this machine.
        is_within: all of its ranks are on this machine.
        is_pcie: GPUs of the machine reach each other over the host's link.
    """

    sent_bytes: float
    seconds: float
    num_local: int
    is_within: bool
    is_pcie: bool


def message_load(gpu: Gpu, work: CollectiveCall, passage: Passage) -> Load:
    """The resources of a GPU that a collective or message takes while it runs."""
    most = work.most_channels or _channels(gpu, work, passage)
    channels = max(min(_channels(gpu, work, passage), most), work.least_channels)
    channels = min(channels, math.ceil(work.num_bytes / _CHANNEL_BYTES))
    rate = _ACCESSES * passage.sent_bytes / passage.seconds
    return Load(
        min(max(channels, 1) / gpu.num_multiprocessors, _MOST),
        min(rate / gpu.bandwidth_bytes_per_s, _MOST),
        "links of the machine" if passage.is_within else "network",
    )


def _channels(gpu: Gpu, work: CollectiveCall, passage: Passage) -> int:
    is_message = work.name in {"send", "receive"}
    has_nvlink = gpu.nvlink_bytes_per_s is not None and not passage.is_pcie
    if passage.is_within and not has_nvlink:
        return _EACH_ADAPTER
    if passage.is_within:
        if is_message:
            return _MESSAGE_WITHIN
        if work.name == "all-reduce" and passage.num_local > 2 and has_multicast(gpu):
            return _NVLS_HOPPER if gpu.compute_capability < (10, 0) else _NVLINK
        return _NVLINK if gpu.compute_capability >= (8, 0) else _NVLINK_VOLTA
    if is_message:
        return _EACH_ADAPTER
    times = 2 if gpu.compute_capability >= (9, 0) and passage.num_local < 8 else 1
    return min(_NVLINK, _EACH_ADAPTER * times * passage.num_local)
