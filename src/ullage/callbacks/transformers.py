"""Records a training of transformers' Trainer, or guards it against running out of memory.

Trainer(..., callbacks=[RecordMemory("run.pickle")]).train()
Trainer(..., callbacks=[GuardMemory(["half.json", "all.json"])]).train()
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from transformers import TrainerCallback

from ullage.callbacks.training_guard import Plans, TrainingGuard
from ullage.callbacks.training_recording import TrainingRecording

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments


class RecordMemory(TrainerCallback):  # type: ignore[misc]
    """Records from the beginning to the end of `train()`; a step is one of the optimizer.

    What the model holds before is in the record as allocated at its beginning. The arguments and
    errors are those of `ullage.record`; `recording.path` is the file that was written.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, **options: object) -> None:
        self.recording = TrainingRecording(path, **options)  # type: ignore[arg-type]

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Begins, in each process."""
        self.recording.begin(args.process_index if args.world_size > 1 else None)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Writes the file; a training that failed is written when the process ends."""
        self.recording.end()


class GuardMemory(TrainerCallback):  # type: ignore[misc]
    """Guards the calls of the model from the beginning to the end of `train()`.

    The arguments and errors are those of `ullage.guard_model`.
    """

    def __init__(self, plans: Plans = None, **options: int) -> None:
        self.training = TrainingGuard(plans, **options)

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: object = None,
        optimizer: object = None,
        **_: object,
    ) -> None:
        """Begins."""
        self.training.begin(model, optimizer)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Ends."""
        self.training.end()
