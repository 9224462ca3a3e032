"""What runs inside a watched process, where torch is.

The package itself can be called: it is what `ullage.record` is.

    with ullage.record("run.ullage"):
        train()
    recording = ullage.record.attach()
    with ullage.record.request("chat"):
        answer()
    ullage.record.holders()  # what has a name on the GPU, and how to let it go
"""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from ullage.record.entrances.recording import Recording
    from ullage.record.owners.held_memory import HeldMemory
    from ullage.record.pressure.request_log import Request


def attach(path: str | os.PathLike[str] | None = None, **options: object) -> Recording:
    """Begins to record, such as in a notebook; see `ullage.record.entrances.recording.attach`."""
    from ullage.record.entrances import recording

    return recording.attach(path, **options)  # type: ignore[arg-type]


def request(
    name: str = "request", num_tokens: int | None = None
) -> AbstractContextManager[Request]:
    """While this lasts, a request is answered; see `ullage.record.entrances.recording.request`."""
    from ullage.record.entrances import recording

    return recording.request(name, num_tokens)


def holders(limit: int = 20) -> HeldMemory:
    """A table of what has a name on the GPU; see `ullage.record.entrances.recording.Recording`."""
    from ullage.record.entrances import recording

    return recording.find_holders(limit)


class _Package(ModuleType):
    """The package as a function."""

    def __call__(self, path: str | os.PathLike[str] | None = None, **options: object) -> Recording:
        """A context manager and decorator; see `ullage.record.entrances.recording.Recording`."""
        from ullage.record.entrances import recording

        return recording.Recording(path, **options)  # type: ignore[arg-type]


sys.modules[__name__].__class__ = _Package
