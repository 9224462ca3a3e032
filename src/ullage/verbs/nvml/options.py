"""The options of `ullage nvml`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ullage.ground.protocol.option import ARGUMENT, OPTIONS, SETTINGS, Command, Size
from ullage.verbs.run.options import CAPABILITY, MEMORY


@dataclass(frozen=True, slots=True)
class NvmlOptions:
    """A directory through which a program sees GPUs, and which GPUs."""

    directory: Path = ARGUMENT("", "DIR")
    command: Command = ARGUMENT("", "[-- PROGRAM [ARGUMENTS]]")
    gpu: str | None = OPTIONS(
        "First describe DIR as a machine with this GPU.", "NAME", complete="gpus"
    )
    gpus: int | None = OPTIONS("Number of identical GPUs; default: 1.", "N")
    memory: Size | None = SETTINGS(*MEMORY)
    capability: str | None = SETTINGS(*CAPABILITY)
