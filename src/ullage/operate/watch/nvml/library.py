"""Opens NVML, and says what its errors mean for a reader.

nvml = open_nvml()
try:
    nvml.nvmlDeviceGetPowerUsage(handle)
except READ_ERRORS as error:
    print(reason_of(error), trouble_of(error))
"""

from __future__ import annotations

import enum
from importlib import import_module
from types import ModuleType
from typing import Final

from ullage.ground.errors import DeviceError, EnvironmentProblem

# The numbers of nvmlReturn_t that are treated in a way of their own.
UNINITIALIZED: Final = 1
NOT_SUPPORTED: Final = 3
NOT_FOUND: Final = 6
INSUFFICIENT_SIZE: Final = 7
_REASONS: Final = {
    UNINITIALIZED: "NVML was shut down",
    2: "the driver does not know the question",
    NOT_SUPPORTED: "not supported by this GPU or its driver",
    4: "no permission",
    NOT_FOUND: "not found",
    9: "the NVIDIA driver is not loaded",
    10: "the driver did not answer in time",
    13: "the driver is too old",
    15: "the GPU is lost: it fell off the bus",
    16: "the GPU must be reset",
    18: "the driver and NVML are of different versions; load the new driver or restart",
    25: "the driver is too old",
    26: "the driver no longer supports it",
    28: "the GPU is not there",
}
# Such an answer does not change from one moment to the next.
_LASTING: Final = {2, NOT_SUPPORTED, 4, 13, 21, 22, 25, 26}
_LOST: Final = {15, 16, 28}


class Unknown(Exception):
    """A value is not known; the message says why, as the reason of a note."""


class Trouble(enum.Enum):
    """The meaning of an error for the next reading."""

    LASTING = "lasting"
    PASSING = "passing"
    LOST = "lost"
    CLOSED = "closed"


def open_nvml() -> ModuleType:
    """The module pynvml, initialised.

    Raises:
        EnvironmentProblem: nvidia-ml-py is not installed.
        DeviceError: there is no NVML or no driver here, or it refuses.
    """
    try:
        nvml = import_module("pynvml")
    except ModuleNotFoundError:
        raise EnvironmentProblem(
            "GPUs are read through nvidia-ml-py, which is not installed; "
            "install it with: pip install 'ullage[watch]'"
        ) from None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise DeviceError(_why_not_open(error)) from None
    return nvml


def _why_not_open(error: Exception) -> str:
    if code_of(error) in (12, 13):
        return (
            "there is no NVML (libnvidia-ml.so.1) here; install NVIDIA's driver, start a container "
            "with its GPUs (docker run --gpus all), or give a recording with --replay"
        )
    return f"NVML does not open: {reason_of(error)}"


def code_of(error: Exception) -> int | None:
    """The number of an NVMLError; None of another error."""
    value = getattr(error, "value", None)
    return value if isinstance(value, int) else None


def reason_of(error: Exception) -> str:
    """Why a value is not known, for a note."""
    code = code_of(error)
    if code is None:
        return str(error)
    return _REASONS.get(code) or f"NVML error {code}: {str(error) or 'unknown'}"


def trouble_of(error: Exception) -> Trouble:
    """The meaning of the error for the next reading."""
    code = code_of(error)
    if code in _LOST:
        return Trouble.LOST
    if code == UNINITIALIZED:
        return Trouble.CLOSED
    return Trouble.LASTING if code in _LASTING else Trouble.PASSING
