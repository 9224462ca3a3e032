"""The device that a job is estimated on: its memory, and what lies in it beside PyTorch's own.

gpu = find_entry("h100-80gb")
find_context(gpu, (2, 4)), find_nccl(gpu, (2, 4), 8)
"""

from __future__ import annotations

from typing import Final

from ullage.facts.gpus import nccl
from ullage.facts.gpus.gpu import Entry, Gpu
from ullage.players.eager.term import Interval
from ullage.players.eager.training.eager.machine import Machine

_MIB: Final = 2**20

# Until PyTorch 1.13, whose wheels have CUDA 11.7, all kernels of PyTorch's libraries were loaded at
# once. Above the bare context (2 KiB for each resident thread, facts/gpus/catalog.toml), in MiB:
# Titan V with 1.3 688 (pytorch#28394), V100 of transformers' performance guide 1023; RTX 3090 with
# 1.7.1+cu110 1242 (pytorch#49877), with 1.8.2+cu111 1441 (pytorch#55277). Most: cuDNN's as well.
_LAZY_FROM: Final = (1, 13)
_THREAD_BYTES: Final = 2048
_AMPERE: Final = (8, 0)
_ALL_KERNELS_MIB: Final = {False: (688, 1023, 1400), True: (1242, 1342, 1850)}

# What a rank takes above context and first kernels (614 MiB) in 1,188 training logs of H100s and
# H200s: 560 with a single rank, 826 with two, 880 to 918 with eight. On machines with NVSwitch the
# NCCL of some versions took more (NVLS): 2,832 with 2.21.5 of PyTorch 2.6, 5,210 in PyTorch 2.4.
_NCCL_MIB: Final = (560, 900, 1024)
_NVLS_HIGH_MIB: Final = {(2, 4): 5220, (2, 5): 2880, (2, 6): 2880}
_HOPPER: Final = (9, 0)


def machine_of(gpu: Entry, torch: tuple[int, int]) -> Machine:
    """The rules that PyTorch takes from a GPU's kind."""
    sizes = gpu.num_multiprocessors, gpu.threads_per_multiprocessor
    return Machine(gpu.compute_capability, torch, *sizes)


def find_context(gpu: Entry, torch: tuple[int, int]) -> Interval:
    """Memory of the driver's context with PyTorch's kernels loaded: assumed.

    Counts: the catalogue's figure; before kernels were loaded lazily, all of PyTorch's.
    Ignores: other processes. Error: between its two ends. Source: facts/gpus/catalog.toml, and the
    issues named above.
    """
    if not isinstance(gpu, Gpu) or torch >= _LAZY_FROM:
        return Interval(gpu.context_low_bytes, gpu.context_bytes, gpu.context_high_bytes)
    bare = _THREAD_BYTES * gpu.num_multiprocessors * gpu.threads_per_multiprocessor
    low, likely, high = _ALL_KERNELS_MIB[gpu.compute_capability >= _AMPERE]
    return Interval(bare + low * _MIB, bare + likely * _MIB, bare + high * _MIB)


def find_nccl(gpu: Entry, torch: tuple[int, int], num_gpus: int) -> Interval:
    """The bytes that NCCL holds on a rank of a job: assumed.

    Counts: its kernels, channels and buffers for one communicator over all GPUs.
    Ignores: further communicators, of which each has channels of its own.
    Error: on Hopper between its two ends in 99 % of 5,313 readings of the logs named above, from
    which it is; elsewhere not compared. Source: these logs, and facts/gpus/nccl.py.
    """
    if isinstance(gpu, Gpu) and gpu.compute_capability != _HOPPER:
        return Interval(*nccl.find_nccl(gpu, num_gpus))
    low, likely, high = _NCCL_MIB
    if isinstance(gpu, Gpu) and nccl.has_multicast(gpu) and num_gpus > 2:
        high = _NVLS_HIGH_MIB.get(torch, high)
    return Interval(low * _MIB, likely * _MIB, high * _MIB)
