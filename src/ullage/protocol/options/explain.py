"""The options of `ullage explain`, and of `ullage.explain_file`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from ullage.protocol.options.option import OPTIONS, File, Python, Size


@dataclass(frozen=True, slots=True)
class ExplainOptions:
    """What is explained: a snapshot, or a server's log."""

    file: File
    _: KW_ONLY
    request: Size | None = OPTIONS("Report whether a request of this size would find room.", "SIZE")
    try_remedies: bool = OPTIONS.switch("If memory ran out: replay with each finding's remedy.")
    python: Python | None = OPTIONS("Interpreter whose torch does the replay.", "PATH")
