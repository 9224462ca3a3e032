"""A recording that begins and ends with a training, and never fails it."""

from __future__ import annotations

import atexit
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ullage.players.inside.entrances.recording import Recording, path_of_rank

if TYPE_CHECKING:
    from ullage.players.inside.steps.step_log import Log

_FILE_OF_DIRECTORY = "training.pickle"


class TrainingRecording:
    """Begins and ends a recording; its own failures are one line on stderr.

    The arguments and errors are those of `ullage.record`; for a directory as the path the file is
    "training.pickle" in it. Where there are several ranks, each adds its own to the file's name.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        mode: str = "full",
        ring: str | int = "64MiB",
        every: float | None = 60.0,
        publish: bool = True,
        log: Log | None = None,
    ) -> None:
        self._path = None if path is None else Path(path)
        self._new = partial(Recording, mode=mode, ring=ring, every=every, publish=publish, log=log)
        self._recording: Recording | None = None
        self.path: Path | None = None
        """The file that was written last; None: none was."""
        self._new(self._path)  # a wrong option is refused before the training

    def begin(self, rank: int | None = None) -> None:
        """The training begins. A recording of before, whose training failed, ends now.

        rank: of this process; None where there is one process.
        """
        self.end()
        try:
            recording = self._new(_of_rank(self._path, rank))
            recording.__enter__()
        except Exception as error:  # the training goes on unrecorded
            _say("nothing is recorded", error)
            return
        if recording.is_attached:
            self._recording = recording
            atexit.register(self._end_at_exit)

    def end(self, error: BaseException | None = None) -> None:
        """The training has ended, or `error` ends it: the file is written."""
        if self._recording is None:
            return
        recording, self._recording = self._recording, None
        atexit.unregister(self._end_at_exit)
        try:
            traceback = getattr(error, "__traceback__", None)
            recording.__exit__(None if error is None else type(error), error, traceback)
        except Exception as failure:  # the training's result is its own
            _say("the recording did not end well", failure)
        self.path = recording.path

    def _end_at_exit(self) -> None:
        """No framework tells every callback that a training failed: the interpreter does."""
        self.end(getattr(sys, "last_value", None))


def _of_rank(path: Path | None, rank: int | None) -> Path | None:
    if path is not None and path.is_dir():
        path = path / _FILE_OF_DIRECTORY
    if path is None or rank is None:
        return path
    return path_of_rank(path, rank)


def _say(what: str, error: Exception) -> None:
    print(f"ullage: {what}: {type(error).__name__}: {error}", file=sys.stderr)
