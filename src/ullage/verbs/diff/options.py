"""The options of `ullage diff`, and of `ullage.diff`."""

from __future__ import annotations

from dataclasses import dataclass

from ullage.ground.protocol.option import File


@dataclass(frozen=True, slots=True)
class DiffOptions:
    """The two files that are compared."""

    before: File
    after: File
