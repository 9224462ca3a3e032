"""Records a training of transformers' Trainer, or guards it against running out of memory.

Trainer(..., callbacks=[RecordMemory("run.pickle")]).train()
trainer.add_callback(GuardMemory(trainer, ["half.json", "all.json"]))
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from transformers import TrainerCallback

from ullage.act.callbacks.training_guard import Plans, TrainingGuard
from ullage.act.callbacks.training_recording import TrainingRecording
from ullage.ground.errors import SpecError

if TYPE_CHECKING:
    from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments


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
    """Has a guard run each `training_step` of a trainer: forward and backward of a micro-batch.
    What the trainer does between two of them, such as clipping and evaluation, is not guarded.

    Args:
        trainer: whose step it is; `transformers` does not tell a callback.
        plans: as those of `ullage.guard`, whose options and errors these are.
    """

    def __init__(self, trainer: Trainer, plans: Plans = None, **options: object) -> None:
        self._trainer = trainer
        self.training = TrainingGuard(plans, **options)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Begins.

        Raises:
            SpecError: DeepSpeed trains the model.
        """
        trainer = self._trainer
        if trainer.is_deepspeed_enabled:
            raise SpecError("DeepSpeed's backward cannot be run again; train without it")
        self.training.begin(
            trainer, "training_step", trainer.model_wrapped, trainer.optimizer,
            scaler=trainer.accelerator.scaler,
        )  # fmt: skip

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        """Ends."""
        self.training.end()
