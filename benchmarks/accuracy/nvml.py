"""What the driver says of the first GPU, without a package and without making a context."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager


class _Memory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


@contextmanager
def _nvml() -> Iterator[ctypes.CDLL]:
    """The library between its start and its end; OSError where it answers with an error."""
    library = ctypes.CDLL("libnvidia-ml.so.1")
    _check(library.nvmlInit_v2())
    try:
        yield library
    finally:
        library.nvmlShutdown()


def _check(code: int) -> None:
    if code:
        raise OSError(f"NVML answered with error {code}; see nvmlReturn_t")


def used_bytes() -> int | None:
    """Bytes in use on the whole first GPU, by all processes; None where there is no NVML."""
    memory, device = _Memory(), ctypes.c_void_p()
    try:
        with _nvml() as nvml:
            _check(nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)))
            _check(nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)))
    except OSError:
        return None
    return memory.used


def driver_version() -> str | None:
    """The version of the driver; None where there is no NVML."""
    text = ctypes.create_string_buffer(80)
    try:
        with _nvml() as nvml:
            _check(nvml.nvmlSystemGetDriverVersion(text, len(text)))
    except OSError:
        return None
    return text.value.decode()
