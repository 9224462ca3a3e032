"""The options of `ullage explain` and `ullage what-if`, and of their functions."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from ullage.ground.protocol.option import OPTIONS, File, Python, Size
from ullage.verbs.run.options import MEMORY


@dataclass(frozen=True, slots=True)
class ExplainOptions:
    """The file to explain: a snapshot, or a server's log."""

    file: File
    _: KW_ONLY
    request: Size | None = OPTIONS("Report whether a request of this size would find room.", "SIZE")
    try_remedies: bool = OPTIONS.switch("If memory ran out: replay with each finding's remedy.")
    python: Python | None = OPTIONS("Interpreter whose torch does the replay.", "PATH")


@dataclass(frozen=True, slots=True)
class WhatIfOptions:
    """A snapshot, and the GPU on which it is replayed; without one, a GPU with unlimited memory."""

    file: File
    _: KW_ONLY
    gpu: str | None = OPTIONS("GPU to replay on (see `ullage gpus`).", "NAME", complete="gpus")
    memory: Size | None = OPTIONS(*MEMORY)
    python: Python | None = OPTIONS("Interpreter whose torch does the replay.", "PATH")
