"""GPU memory that NCCL takes in each process that has a communicator, beside its connections.

>>> from ullage.facts.gpus import find_gpu
>>> from ullage.facts.gpus.nccl import find_nccl_kernels, has_multicast
>>> [size >> 20 for size in find_nccl_kernels(find_gpu("h100-80gb"))], has_multicast(find_gpu("l4"))
([191, 701], False)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from ullage.facts.gpus.gpu import Segment
from ullage.ground.units import MIB

if TYPE_CHECKING:
    from ullage.facts.gpus.gpu import Gpu


class _Code(NamedTuple):
    """NCCL's machine code for one architecture: its MiB, and the stack of one thread in bytes."""

    mib: int
    stack_bytes: int


# By compute capability: what NCCL has code for runs on the later GPUs of the same major number.
# Read from libnccl.so: its .text sections of CUBIN files, and the greatest EIATTR_MIN_STACK_SIZE.
# Source: the wheels nvidia-nccl-cu12 2.27.5 (7.0), nvidia-nccl-cu13 2.28.9; 2.21.5 has 90, 90 and
# 164 MiB for 7.0, 8.0 and 9.0, and less stack on the latter two.
_CODE: Final = {
    (7, 0): _Code(87, 832),
    (7, 5): _Code(87, 1072),
    (8, 0): _Code(87, 1504),
    (9, 0): _Code(191, 1976),
    (10, 0): _Code(183, 2040),
    (11, 0): _Code(184, 2040),
    (12, 0): _Code(162, 1280),
}


# 564 MiB less the code, of the stacks of all resident threads; 32 channels to two ranks.
_USUAL_STACKS_FRAC: Final = 0.73
_USUAL_BUFFERS_BYTES: Final = 300 * MIB
_CONNECTIONS_BYTES: Final = 32 * 2 * 12 * MIB
_LOCAL_RANKS: Final = 8


def find_nccl_kernels(gpu: Gpu) -> tuple[int, int]:
    """The least and the most bytes that NCCL's kernels take on a GPU, once in a process.

    The least is their machine code. The most has a stack besides for every thread that the GPU can
    keep resident, which the driver reserves for the kernel that needs the most. On an H100 training
    logs have 564 MiB (1,174 to 1,176 MiB with a communicator of one rank, 610 to 612 without).
    """
    fitting = [capability for capability in _CODE if capability <= gpu.compute_capability]
    code = _CODE[max(fitting)] if fitting else min(_CODE.values())
    threads = gpu.num_multiprocessors * gpu.threads_per_multiprocessor
    return code.mib * MIB, code.mib * MIB + threads * code.stack_bytes


def find_nccl(gpu: Gpu, num_ranks: int) -> tuple[int, int, int]:
    """The least, the likely and the most bytes that NCCL takes on a GPU for one communicator, from
    NCCL 2.22 on.

    The likely size of the kernels has the share of the stacks that an H100's has; that of the
    buffers is what training logs of two and eight H100s have above one (262 and 332 MiB). The most
    are the phantom's buffers (players/phantom/csrc/answers/nccl_memory.c).
    """
    low, high = find_nccl_kernels(gpu)
    likely = low + int(_USUAL_STACKS_FRAC * (high - low))
    if num_ranks > 1 and has_peer_access(gpu):
        in_switch = num_ranks > 2 and has_multicast(gpu)
        likely += _USUAL_BUFFERS_BYTES
        high += _CONNECTIONS_BYTES + in_switch * min(num_ranks, _LOCAL_RANKS) * 2 * 32 * MIB
    return low, likely, high


def has_multicast(gpu: Gpu) -> bool:
    """True if NCCL reduces within the switch (NVLS) where more than two such GPUs are together.

    Source: NCCL, src/transport/nvls.cc; NVSwitch of the third generation, with SXM boards from
    Hopper on.
    """
    return gpu.form.startswith("SXM") and gpu.compute_capability >= (9, 0)


def has_peer_access(gpu: Gpu) -> bool:
    """True if several of a GPU read each other's memory without the host.

    NVIDIA offers it on no GeForce after the RTX 20 series but over NVLink. Others have it where
    the machine does not keep them from it, which is assumed. torch makes copies of tensors that
    are not contiguous, or change their type, through temporaries where there is none.
    Source: NVIDIA's statement about the RTX 4090, as purepc.pl reports it, which has the history.
    """
    is_late_geforce = gpu.segment is Segment.CONSUMER and gpu.compute_capability >= (8, 0)
    return gpu.nvlink_bytes_per_s is not None or not is_late_geforce
