"""DeepSpeed's ZeRO-Infinity: parameters and states on NVMe, and what stays in memory.

It is not played. The rules are those of DeepSpeed 0.19.8 with its defaults, as in its sources
(runtime/zero/stage3.py, runtime/zero/config.py, runtime/zero/offload_config.py and
runtime/swap_tensor); each figure is an interval, because buffers are taken as they are needed. On
the GPU they were compared with ZeRO-3 with offload to host memory on the phantom; reading from and
writing to a disk takes a library that has to be compiled, so the host's share was not run.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ullage.players.eager.term import Interval

# Defaults, in elements: reduce_bucket_size, stage3_max_live_parameters, prefetch_bucket_size.
_BUCKET: Final = 500_000_000
_LIVE: Final = 1_000_000_000
_PREFETCHED: Final = 50_000_000
# offload_param: buffer_count, buffer_size, max_in_cpu; offload_optimizer: buffer_count.
_PARAMETER_BUFFERS: Final = 5
_PARAMETER_BUFFER: Final = 100_000_000
_MOST_IN_HOST: Final = 1_000_000_000
_STATE_BUFFERS: Final = 4
_SUB_GROUP: Final = 1_000_000_000  # sub_group_size: elements that are stepped at once
_HALF, _SINGLE = 2, 4  # bytes of an element: parameters in 16 bits, states in 32


class HostMemory(NamedTuple):
    """The memory that a rank needs beside its GPU.

    Attributes:
        memory: memory of the host.
        disk_bytes: bytes on NVMe.
    """

    memory: Interval
    disk_bytes: int = 0


NOTHING: Final = HostMemory(Interval(0, 0, 0))


def buffers_on_device(num_parameters: int) -> Interval:
    """The bytes of gradients that wait to be reduced and of parameters that are gathered and stay.

    Counts: one bucket of reduce_bucket_size, two where overlap_comm has a second; parameters that
    will be used again soon, up to stage3_max_live_parameters and what is prefetched. Ignores: that
    the gathered layer is counted among the parameters already.
    Source: runtime/zero/stage3.py (ipg_buckets) and partitioned_param_coordinator.py.
    """
    bucket = _HALF * _BUCKET
    live = _HALF * min(num_parameters, _LIVE + _PREFETCHED)
    return Interval(bucket, bucket + live, 2 * bucket + live)


def host_memory(num_elements: int) -> HostMemory:
    """Host memory of a rank that holds num_elements of the parameters.

    Counts: pinned buffers for parameters, for the states of one sub-group (master weight, gradient
    and two moments), a flat buffer of gradients; likely also the parameters that max_in_cpu lets
    stay, and a gradient of the sub-group in 32 bits; at most the flat buffer in 32 bits, and each
    pinned block rounded up to a power of two, as PyTorch's cache of pinned memory does. On disk:
    parameters that do not stay, and the states. Ignores: what the process itself takes.
    Source: partitioned_param_swapper.py, optimizer_utils.py, stage3.py
    (_create_param_groups_fp16_flat_cpu_memory, grad_partitions_flat_buffer).
    """
    group = min(num_elements, _SUB_GROUP)
    staying = min(num_elements, _MOST_IN_HOST)
    buffers = _HALF * _PARAMETER_BUFFERS * _PARAMETER_BUFFER + _SINGLE * _STATE_BUFFERS * group
    low = buffers + _HALF * num_elements
    likely = low + _HALF * staying + _SINGLE * group
    high = 2 * (likely + (_SINGLE - _HALF) * num_elements)
    disk = _HALF * (num_elements - staying) + 3 * _SINGLE * num_elements
    return HostMemory(Interval(low, likely, high), disk)
