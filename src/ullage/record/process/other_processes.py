"""How many other processes use a GPU, as NVML counts them."""

from __future__ import annotations

import ctypes
from types import ModuleType

_MORE_ROOM = 7  # NVML_ERROR_INSUFFICIENT_SIZE: the answer to a question for the number alone
_QUESTIONS = (
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
)


def count_others(torch: ModuleType, device: int) -> int | None:
    """The processes on a device beside this one, which has a context there; None: NVML does not
    tell, such as in some containers.

    By number, not by process id: in a container NVML has the ids of the host.
    """
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    if uuid is None:
        return None
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        handle = ctypes.c_void_p()
        if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByUUID(
            f"GPU-{uuid}".encode(), ctypes.byref(handle)
        ):
            return None
        count = 0
        for question in _QUESTIONS:
            number = ctypes.c_uint(0)
            if nvml[question](handle, ctypes.byref(number), None) not in (0, _MORE_ROOM):
                return None
            count += number.value
    except (OSError, AttributeError):
        return None
    return count - 1 if count else None
