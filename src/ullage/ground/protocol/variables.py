"""The names of all ULLAGE_* variables; tests/variables.py says what they carry, and between whom.

The watched process imports this module before the program's first line, even where the program
never imports torch: it must stay cheap, and needs nothing that is not loaded by then.

    os.environ.get(variables.RUN_DIR)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PHANTOM: Final = "ULLAGE_PHANTOM"
RECORD: Final = "ULLAGE_RECORD"
RECORDING: Final = "ULLAGE_RECORDING"
PARENT: Final = "ULLAGE_PARENT"
RUN_DIR: Final = "ULLAGE_RUN_DIR"
INPUTS: Final = "ULLAGE_INPUTS"

DEVICE: Final = "ULLAGE_DEVICE"
NUM_DEVICES: Final = "ULLAGE_NUM_DEVICES"
LIBRARIES: Final = "ULLAGE_LIBRARIES"
COMPLETION: Final = "ULLAGE_COMPLETION"
PLATFORM: Final = "ULLAGE_PLATFORM"
NVML: Final = "ULLAGE_NVML"

OPTIONS: Final = "ULLAGE_OPTIONS"
PROGRESS: Final = "ULLAGE_PROGRESS"
SNAPSHOT: Final = "ULLAGE_SNAPSHOT"
CLOCK: Final = "ULLAGE_CLOCK"
VIRTUAL_TIME: Final = "ULLAGE_VIRTUAL_TIME"
RANK: Final = "ULLAGE_RANK"

PLAN: Final = "ULLAGE_PLAN"
PLAN_NOTES: Final = "ULLAGE_PLAN_NOTES"
DESCRIBE: Final = "ULLAGE_DESCRIBE"
REPLAY: Final = "ULLAGE_REPLAY"
CAP: Final = "ULLAGE_CAP"
CAP_NOTES: Final = "ULLAGE_CAP_NOTES"
GUARD: Final = "ULLAGE_GUARD"

WARM: Final = "ULLAGE_WARM"
PREFORK: Final = "ULLAGE_PREFORK"


def device_property(environment: Mapping[str, str], key: str) -> str | None:
    """One property of DEVICE; None where it is not stated."""
    for field in environment.get(DEVICE, "").split(";"):
        name, _, value = field.partition("=")
        if name == key:
            return value
    return None
