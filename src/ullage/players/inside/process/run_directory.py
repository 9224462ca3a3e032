"""The place of a process in the directory of its run: its mark, its progress, its record, and the
pipe at which it hears that it is to end.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ullage.players.inside.part import Part
from ullage.players.inside.process import levels
from ullage.players.inside.process.request_to_end import wait_for_request
from ullage.players.inside.requests import requests

if TYPE_CHECKING:
    from ullage.ground.protocol.run import RunVariables
    from ullage.players.inside.recorder import Recorder

_RESERVE_BYTES = 64 << 20  # of address space, given back for the record where memory ran out


class RunDirectory(Part):
    """The directory in which others see this process."""

    def __init__(self, recorder: Recorder, run: RunVariables) -> None:
        self._recorder = recorder
        self._run = run
        self._reserve: mmap.mmap | None = None

    def find_paths(self) -> list[tuple[Path, bool]]:
        """The record, and the snapshot, where that is wanted."""
        stem = self._run.run_dir / str(os.getpid())
        snapshot = (stem.with_suffix(".snapshot.pickle"), True)
        return [(stem.with_suffix(".record"), False), *([snapshot] * self._run.has_snapshot)]

    def begin(self) -> None:
        """A device is used: this process leaves a record."""
        recorder, run_dir, pid = self._recorder, self._run.run_dir, os.getpid()
        recorder.file.mark = levels.begin(run_dir, pid)
        wait_for_request(run_dir, pid, recorder.note_signal, recorder.finish)
        if self._reserve is None:
            with contextlib.suppress(OSError, ValueError):
                self._reserve = mmap.mmap(-1, _RESERVE_BYTES)

    def go_on_as(self, run: RunVariables) -> None:
        """The directory is another one."""
        self._run = run
        if self._recorder.has_device:
            self.begin()

    def end_step(self, count: int) -> None:
        """Says so, to whoever waits for it."""
        if self._run.progress is not None:
            allocated = self._recorder.peaks.allocated_now() if self._recorder.has_device else 0
            # A disk that is full, or no file allowed any more, is not to end the program.
            with contextlib.suppress(OSError), self._run.progress.open("a") as progress:
                progress.write(f"step {count} allocated {allocated}\n")

    def fields(self) -> dict[str, Any]:
        """The requests that were answered here, after each of which a step ends."""
        answered = requests.answered_by(os.getpid(), self._run.run_dir)
        marks = self._recorder.phases.whole_marks()
        return {
            "requests": answered,
            "marks": requests.as_steps(marks, answered),
            "basis": requests.assume_order(answered),
        }

    def close(self) -> None:
        """Gives memory back for the record."""
        if self._reserve is not None:
            self._reserve.close()

    def leave(self) -> None:
        """It is the other process's."""
