"""The options of `ullage gpus`."""

from __future__ import annotations

from dataclasses import dataclass

from ullage.ground.protocol.option import ARGUMENT


@dataclass(frozen=True, slots=True)
class GpusOptions:
    """Which of the known GPUs are shown; None: all."""

    name: str | None = ARGUMENT("", default=None)
