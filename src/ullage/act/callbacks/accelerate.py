"""Records a training loop of Accelerate, as one of its trackers.

accelerator = Accelerator(log_with=RecordMemory("run.pickle"))
accelerator.init_trackers("name")  # begins
...
accelerator.end_training()  # writes the file

Accelerate has no training step of its own that could be guarded: `ullage.guard(model, optimizer)`
runs that of the program, with what `accelerator.prepare` has returned.
"""

from __future__ import annotations

import os

from accelerate import PartialState
from accelerate.tracking import GeneralTracker

from ullage.act.callbacks.training_recording import TrainingRecording
from ullage.ground.protocol.run import launcher_rank


class RecordMemory(GeneralTracker):  # type: ignore[misc]
    """Records from `init_trackers` to `end_training`; a step is one of the optimizer.

    The arguments and errors are those of `ullage.record`; `recording.path` is the file that was
    written. Every process records, not the main one alone: Accelerate calls no tracker in the
    others, which are recorded from here to their end.
    """

    name = "ullage"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self, path: str | os.PathLike[str] | None = None, **options: object) -> None:
        super().__init__()
        self.recording = TrainingRecording(path, **options)  # type: ignore[arg-type]
        self._has_begun = False
        rank = launcher_rank()
        if rank:
            self._has_begun = True
            self.recording.begin(rank)

    @property
    def tracker(self) -> TrainingRecording:
        """The tracker that Accelerate gives to `get_tracker(..., unwrap=True)`."""
        return self.recording

    def start(self) -> None:
        """Begins, in each process."""
        if not self._has_begun:
            self._has_begun = True
            state = PartialState()
            self.recording.begin(state.process_index if state.num_processes > 1 else None)

    def store_init_configuration(self, values: dict[str, object]) -> None:
        """The configuration is not recorded. Where Accelerate calls no `start`, it begins here."""
        self.start()

    def log(self, values: dict[str, object], step: int | None = None, **_: object) -> None:
        """Ignores the values that the program logs."""

    def finish(self) -> None:
        """Writes the file."""
        self._has_begun = False
        self.recording.end()
