"""A memory cap for a process that shares its GPU: `ullage.cap`, and `ullage exec --cap`.

    ullage.cap("20GiB")

The cap counts what nvidia-smi shows for the process: what PyTorch's allocator reserves, and the
context beside it, which is measured. The rest of the cap is the allocator's limit, and beyond
it the program gets a torch.OutOfMemoryError, as from a GPU of that size.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

from ullage.act.techniques.applying.outcome import State, note
from ullage.ground.errors import SpecError
from ullage.ground.protocol.variables import CAP, CAP_NOTES
from ullage.ground.units import format_bytes, parse_bytes
from ullage.players.inside.import_hooks import on_import

# The memory that this process has on a GPU, its context included, as nvidia-smi shows it.

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


# Kernels that are loaded later, and libraries that keep memory of their own, grow the context.
RESERVE_BYTES: Final = 256 << 20
_NO_CAP: Final = 1.0


@dataclass(frozen=True, slots=True)
class Cap:
    """A cap that was set on the GPU of a number.

    Attributes:
        cap_bytes: the most that nvidia-smi is to show for the process.
        context_bytes: of the process beside the allocator, when the cap was set.
        reserve_bytes: what is left free for its growth.
        allocator_bytes: the most that the allocator may reserve.
        is_of_process: whether the context is that of the process; else it is all that others have
            too.
        total_bytes: the memory of the GPU.
    """

    device: int
    cap_bytes: int
    context_bytes: int
    reserve_bytes: int
    allocator_bytes: int
    is_of_process: bool
    total_bytes: int

    @property
    def text(self) -> str:
        """Its parts, in a line."""
        if self.cap_bytes >= self.total_bytes:
            return (
                f"cap: {format_bytes(self.cap_bytes)} limit nothing: GPU {self.device} has "
                f"{format_bytes(self.total_bytes)}"
            )
        own = "context and reserve" if self.is_of_process else "context and others"
        return (
            f"cap: {format_bytes(self.cap_bytes)} of GPU {self.device}: "
            f"{format_bytes(self.allocator_bytes)} PyTorch, "
            f"{format_bytes(self.context_bytes + self.reserve_bytes)} {own}"
        )


def cap(
    limit: str | int | None,
    *,
    device: int | None = None,
    reserve: str | int = RESERVE_BYTES,
) -> Cap | None:
    """Caps the memory that this process takes of a GPU, its context included.

    The context is created if there is none, and measured: by NVML, which nvidia-smi asks too; where
    it does not know the process, as in a container with its own process numbers, by all that the
    GPU uses, and the cap says so. Memory that the program asks the driver for itself is measured
    only if it has it already.

    Args:
        limit: such as "20GiB"; None: takes the cap away, and returns None.
        device: the number of the GPU; None: the present one.
        reserve: left free for the growth of the context: kernels are loaded when they first run.

    Raises:
        SpecError: there is no GPU, or the context, the reserve and what the program has already are
            more than the cap.
    """
    import torch

    if not torch.cuda.is_available():
        raise SpecError("there is no GPU whose memory could be capped")
    torch.cuda.init()
    number = torch.cuda.current_device() if device is None else device
    if not 0 <= number < torch.cuda.device_count():
        raise SpecError(f"device={number} is none of the {torch.cuda.device_count()} GPUs")
    with torch.cuda.device(number):
        if limit is None:
            torch.cuda.set_per_process_memory_fraction(_NO_CAP, number)
            return None
        torch.cuda.synchronize(number)  # creates the context
        reserved_bytes = torch.cuda.memory_reserved(number)
        division = _divide(
            number,
            parse_bytes(limit),
            parse_bytes(reserve),
            read_process_memory(torch, number),
            reserved_bytes,
            total_bytes=torch.cuda.mem_get_info(number)[1],
        )
        fraction = min(division.allocator_bytes / division.total_bytes, _NO_CAP)
        torch.cuda.set_per_process_memory_fraction(fraction, number)
    return division


def _divide(
    device: int, cap_bytes: int, reserve_bytes: int, used: ProcessMemory, reserved_bytes: int, *,
    total_bytes: int,
) -> Cap:  # fmt: skip
    context_bytes = max(0, used.used_bytes - reserved_bytes)
    divided = Cap(
        device=device,
        cap_bytes=cap_bytes,
        context_bytes=context_bytes,
        reserve_bytes=reserve_bytes,
        allocator_bytes=cap_bytes - context_bytes - reserve_bytes,
        is_of_process=used.is_of_process,
        total_bytes=total_bytes,
    )
    if divided.allocator_bytes <= reserved_bytes:
        raise SpecError(
            f"a cap of {format_bytes(cap_bytes)} is too small: the context takes "
            f"{format_bytes(context_bytes)}, the reserve {format_bytes(reserve_bytes)}, and the "
            f"allocator has {format_bytes(reserved_bytes)} already; give more, or set it earlier"
        )
    return divided


def start() -> None:
    """Sets the cap of the environment in this process once it initialises CUDA."""
    environment = dict(os.environ)
    on_import("torch", lambda torch: install_from(environment, torch))


def install_from(environment: Mapping[str, str], torch: ModuleType) -> None:
    """Has torch set the cap that the environment names, if any, when it initialises CUDA."""
    limit = environment.get(CAP)
    if limit is not None:
        has_cuda = torch.version.cuda or torch.version.hip
        why = "used CUDA" if has_cuda else f"has CUDA: torch {torch.__version__} is for the CPU"
        _note(environment, State.WAITING, f"no process of the program {why}")
        torch.cuda._lazy_call(lambda: _set_at_start(torch, limit, environment))


def _note(environment: Mapping[str, str], state: State, reason: str = "") -> None:
    if CAP_NOTES in environment:
        note(Path(environment[CAP_NOTES]), state, reason)


def _set_at_start(torch: Any, limit: str, environment: Mapping[str, str]) -> None:
    """Caps the GPU of this process: that of its local rank, where a launcher has given it one."""
    rank = environment.get("LOCAL_RANK", "")
    is_rank = rank.isdecimal() and int(rank) < torch.cuda.device_count()
    try:
        limits = cap(limit, device=int(rank) if is_rank else None)
    except SpecError as error:
        _note(environment, State.REFUSED, str(error))
        raise SystemExit(1) from None  # without a traceback: `ullage exec` says why
    _note(environment, State.APPLIED)
    if limits is not None:
        print(f"ullage: {limits.text}", file=sys.stderr, flush=True)
