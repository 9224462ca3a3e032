"""The notes of a run's processes for the one that started them: a file of each.

write_note(directory, "end", EndNote(...))      # in a process; the last call counts
read_notes(directory, "end", EndNote)           # in the process that started it
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from ullage.ground.protocol.plain import JSON, plain

T = TypeVar("T")


def write_note(directory: Path, kind: str, note: object) -> None:
    """Writes a record, whole or not at all."""
    path = directory / f"{kind}-{os.getpid()}.json"
    written = path.with_suffix(".new")
    with suppress(OSError):  # the process has outlived the run, and nobody reads the file
        written.write_text(json.dumps(plain(note)), encoding="utf-8")
        written.replace(path)


def read_notes(directory: Path, kind: str, record: type[T]) -> list[T]:
    """The records of all processes."""
    paths = sorted(directory.glob(f"{kind}-*.json"))
    return [JSON.read(record, json.loads(path.read_text(encoding="utf-8"))) for path in paths]
