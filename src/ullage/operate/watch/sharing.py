"""How several processes share a GPU: by MIG, by MPS, or one after the other.

MIG cuts a GPU into devices of their own. Under MPS the kernels of several processes run beside each
other; the driver lists such processes apart. Else, processes with contexts on one GPU take turns
(time slicing), whether or not Kubernetes was told to offer the GPU several times.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Final

from ullage.operate.watch.sample import DeviceSample, ProcessKind

# It holds memory of each GPU that it serves, and computes nothing of its own.
_SERVER: Final = "nvidia-cuda-mps-server"


class Sharing(enum.Enum):
    """How the processes on a GPU share it; NONE: there is one at most."""

    NONE = "none"
    TIME_SLICING = "time-slicing"
    MPS = "mps"
    MPS_AND_TIME_SLICING = "mps+time-slicing"
    MIG = "mig"


def sharing_of(device: DeviceSample, devices: Sequence[DeviceSample]) -> Sharing | None:
    """How a GPU or MIG device is shared; None: its processes are not known.

    A GPU that is cut into MIG devices is MIG; each of them is shared in a way of its own.

    Args:
        device: which.
        devices: all of its sample.
    """
    if device.mig is None and any(
        other.mig is not None and other.index == device.index for other in devices
    ):
        return Sharing.MIG
    if device.processes is None:
        return None
    kinds = {each.pid: each.kind for each in device.processes if each.name != _SERVER}
    has_server = any(each.name == _SERVER for each in device.processes)
    num_clients = sum(kind is ProcessKind.MPS for kind in kinds.values())
    num_others = sum(kind is ProcessKind.COMPUTE for kind in kinds.values())
    if num_clients or (has_server and not num_others):
        return Sharing.MPS_AND_TIME_SLICING if num_others else Sharing.MPS
    return Sharing.TIME_SLICING if num_others > 1 else Sharing.NONE
