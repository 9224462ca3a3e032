"""The code that runs inside a watched process, where torch is.

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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ullage.players.inside.entrances.recording import Recording, attach, holders, request

__all__ = ["attach", "holders", "request"]


class _Package(ModuleType):
    """The package as a function; what else it offers is loaded when it is asked for."""

    def __call__(self, path: str | os.PathLike[str] | None = None, **options: Any) -> Recording:
        """A context manager and decorator; see
        `ullage.players.inside.entrances.recording.Recording`.
        """
        from ullage.players.inside.entrances import recording

        return recording.Recording(path, **options)

    def __getattr__(self, name: str) -> Any:
        """The attributes of `ullage.players.inside.entrances.recording`."""
        if name not in __all__:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        from ullage.players.inside.entrances import recording

        return getattr(recording, name)


sys.modules[__name__].__class__ = _Package
