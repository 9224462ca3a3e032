"""The options of `ullage scrub`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ullage.protocol.options.option import OPTIONS


@dataclass(frozen=True, slots=True)
class ScrubOptions:
    """A snapshot, and what is removed from it."""

    file: Path
    output: Path = OPTIONS("File to write.", "FILE", "-o", "--output", is_required=True)
    words: Sequence[str] = OPTIONS(
        "Also remove this text, for example a project's name; repeatable.", "TEXT", "--word",
        default=(),
    )  # fmt: skip
    key: str | None = OPTIONS(
        "Key for hashing directories, so that several files agree; default: a random key.", "TEXT"
    )
