"""The options of `ullage doctor`."""

from __future__ import annotations

from dataclasses import dataclass

from ullage.ground.protocol.option import OPTIONS, Python
from ullage.verbs.run.options import PYTHON


@dataclass(frozen=True, slots=True)
class DoctorOptions:
    """The interpreter whose torch is looked at."""

    python: Python | None = OPTIONS(*PYTHON)
    schema: bool = OPTIONS.switch("Print the JSON schema of the document instead.")
