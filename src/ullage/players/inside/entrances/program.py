"""Records the whole life of a program that `ullage record` started, from the import of torch on."""

from __future__ import annotations

import atexit
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from ullage.ground.protocol.run import launcher_rank
from ullage.ground.protocol.variables import RECORDING
from ullage.players.inside.entrances.settings import RecordingSettings
from ullage.players.inside.import_hooks import on_import


def start() -> None:
    """Arranges for torch to be watched in this process, when and if it is imported."""
    settings = RecordingSettings.from_environment(os.environ)
    os.environ[RECORDING] = replace(settings, is_first=False).to_variable()  # for its children
    on_import("torch", lambda torch: _record(torch, settings))


def _record(torch: ModuleType, settings: RecordingSettings) -> None:
    from ullage.players.inside.entrances.real_gpu import record_gpu
    from ullage.players.inside.program_end import watch_end

    if not hasattr(torch._C, "_cuda_record_memory_history") or settings.path is None:
        return  # a build without CUDA
    try:
        recorder = record_gpu(torch, replace(settings, path=path_of_process(settings)))
        recorder.attach()
    except Exception as error:  # the program runs all the same
        print(f"ullage: nothing is recorded: {type(error).__name__}: {error}", file=sys.stderr)
        return
    atexit.register(recorder.finish)
    watch_end(recorder)


def path_of_process(settings: RecordingSettings) -> Path | None:
    """The file of this process: that which was named, with the number of its rank, or of its
    process where another one was started first.
    """
    path, rank = settings.path, launcher_rank()
    if path is None or (rank is None and settings.is_first):
        return path
    which = f"-{os.getpid()}" if rank is None else f"-rank{rank}"
    return path.with_name(f"{path.stem}{which}{path.suffix}")
