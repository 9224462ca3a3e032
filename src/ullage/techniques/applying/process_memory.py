"""The memory that this process has on a GPU, its context included, as nvidia-smi shows it."""

from __future__ import annotations

import ctypes
import os
from typing import Any, NamedTuple

_SUCCESS = 0
_MAX_PROCESSES = 1024
# usedGpuMemory of a process of which the driver does not know it.
_UNKNOWN = 2**64 - 1


class _Process(ctypes.Structure):
    """nvmlProcessInfo_v2_t"""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used_bytes", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class ProcessMemory(NamedTuple):
    """The memory of a process on a GPU.

    Attributes:
        used_bytes: with its context.
        is_of_process: whether it was asked of this process; else it is what the whole GPU uses,
            which other processes have a part in.
    """

    used_bytes: int
    is_of_process: bool


def read_process_memory(torch: Any, device: int) -> ProcessMemory:
    """The memory that this process has on a GPU, on which it must have a context.

    NVML is asked for the process. Where it does not name it, as in a container with its own process
    numbers or on a MIG device, the GPU's memory in use is taken.
    """
    own = _ask_nvml(torch, device)
    if own is not None:
        return ProcessMemory(own, is_of_process=True)
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    return ProcessMemory(total_bytes - free_bytes, is_of_process=False)


def _ask_nvml(torch: Any, device: int) -> int | None:
    """Asks NVML for the bytes of this process; None: NVML does not say."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        uuid = str(torch.cuda.get_device_properties(device).uuid)
        if nvml.nvmlInit_v2() != _SUCCESS:
            return None
    except (OSError, AttributeError):
        return None
    try:
        handle = ctypes.c_void_p()
        name = f"GPU-{uuid.removeprefix('GPU-')}".encode()
        if nvml.nvmlDeviceGetHandleByUUID(name, ctypes.byref(handle)) != _SUCCESS:
            return None
        return _own_bytes(nvml, handle)
    finally:
        nvml.nvmlShutdown()


def _own_bytes(nvml: Any, handle: ctypes.c_void_p) -> int | None:
    count = ctypes.c_uint(_MAX_PROCESSES)
    processes = (_Process * _MAX_PROCESSES)()
    ask = getattr(nvml, "nvmlDeviceGetComputeRunningProcesses_v3", None)
    if ask is None or ask(handle, ctypes.byref(count), processes) != _SUCCESS:
        return None
    own = [each.used_bytes for each in processes[: count.value] if each.pid == os.getpid()]
    return own[0] if own and own[0] != _UNKNOWN else None
