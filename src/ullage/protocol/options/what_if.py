"""The options of `ullage what-if`, and of `ullage.what_if`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from ullage.protocol.options.option import OPTIONS, File, Python, Size
from ullage.protocol.options.run import MEMORY


@dataclass(frozen=True, slots=True)
class WhatIfOptions:
    """A snapshot, and the GPU on which it is replayed; without one, a GPU with unlimited memory."""

    file: File
    _: KW_ONLY
    gpu: str | None = OPTIONS("GPU to replay on (see `ullage gpus`).", "NAME", complete="gpus")
    memory: Size | None = OPTIONS(*MEMORY)
    python: Python | None = OPTIONS("Interpreter whose torch does the replay.", "PATH")
