"""A real GPU beside PyTorch's memory: its driver, and who else uses it."""

from __future__ import annotations

import contextlib
import ctypes
import os
from types import ModuleType
from typing import Any

from ullage.ground.protocol.variables import PHANTOM
from ullage.players.inside.part import Part

_DRIVER_CHARS = 96
_MORE_ROOM = 7  # NVML_ERROR_INSUFFICIENT_SIZE: the answer to a question for the number alone
_QUESTIONS = (
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3",
)


class RealDevices(Part):
    """The devices of this machine, as they were when CUDA started.

    mode: how much is recorded.
    """

    def __init__(self, torch: ModuleType, mode: str) -> None:
        self._torch: Any = torch
        self._mode = mode
        self._outside: dict[int, int] = {}
        self._num_others: list[int | None] = []

    def begin(self) -> None:
        """Asks what is in use of each device beside PyTorch's memory: the driver's context, other
        libraries, and other processes.
        """
        torch = self._torch
        with contextlib.suppress(RuntimeError):  # a device that others hold exclusively
            for index in range(torch.cuda.device_count()):
                free, total = torch.cuda.mem_get_info(index)
                stats = torch._C._cuda_memoryStats(index)
                reserved = stats["reserved_bytes"]["all"]["current"]
                self._outside[index] = max(0, int(total) - int(free) - reserved)
                self._num_others.append(count_others(torch, index))

    def device_fields(self, index: int) -> dict[str, Any]:
        """The bytes that the device held besides; what was held later is not known."""
        return {
            "context_bytes": self._outside.get(index, 0),
            "non_torch_bytes": 0,
            "outside": [],
            "peak_of_all_bytes": 0,
            "place": index,
        }

    def fields(self) -> dict[str, Any]:
        """That it was measured, and where."""
        measured = {
            "mode": self._mode,
            "driver": driver_version(),
            "num_lost": 0,
            "num_others": self._num_others,
            "is_phantom": PHANTOM in os.environ,
        }
        return {"measured": measured}


def driver_version() -> str | None:
    """The version of NVIDIA's driver, from NVML; None: there is no NVML."""
    text = ctypes.create_string_buffer(_DRIVER_CHARS)
    with contextlib.suppress(OSError, AttributeError):
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        if not nvml.nvmlInit_v2() and not nvml.nvmlSystemGetDriverVersion(text, _DRIVER_CHARS):
            return text.value.decode(errors="replace") or None
    return None


def gpu_names() -> tuple[str, ...]:
    """The names of this machine's GPUs, from NVML, also of those that CUDA is not to see."""
    names: list[str] = []
    with contextlib.suppress(OSError, AttributeError):
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        count, handle = ctypes.c_uint(), ctypes.c_void_p()
        text = ctypes.create_string_buffer(_DRIVER_CHARS)
        if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return ()
        for index in range(count.value):
            if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0:
                nvml.nvmlDeviceGetName(handle, text, _DRIVER_CHARS)
                names.append(text.value.decode(errors="replace"))
    return tuple(names)


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
