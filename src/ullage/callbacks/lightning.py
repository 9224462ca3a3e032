"""Records a training of Lightning's Trainer, or guards it against running out of memory.

lightning.Trainer(callbacks=[RecordMemory("run.pickle")]).fit(module)
lightning.Trainer(callbacks=[GuardMemory(["half.json", "all.json"])]).fit(module)
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

try:
    from lightning.pytorch import Callback
except ImportError:  # the package under its older name
    from pytorch_lightning import Callback

from ullage.callbacks.training_guard import Plans, TrainingGuard
from ullage.callbacks.training_recording import TrainingRecording

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer


class RecordMemory(Callback):  # type: ignore[misc]
    """Records `fit`, from before the model is moved to the GPU; a step is one of the optimizer.

    The arguments and errors are those of `ullage.record`; `recording.path` is the file that was
    written.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, **options: object) -> None:
        super().__init__()
        self.recording = TrainingRecording(path, **options)  # type: ignore[arg-type]

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Begins, in each process."""
        if stage == "fit":
            self.recording.begin(trainer.global_rank if trainer.world_size > 1 else None)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Writes the file of a training that failed."""
        self.recording.end(exception)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Writes the file."""
        if stage == "fit":
            self.recording.end()


class GuardMemory(Callback):  # type: ignore[misc]
    """Guards the calls of the modules that `training_step` calls, during `fit`.

    The arguments and errors are those of `ullage.guard_model`.
    """

    def __init__(self, plans: Plans = None, **options: int) -> None:
        super().__init__()
        self.training = TrainingGuard(plans, **options)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begins."""
        self.training.begin(pl_module, trainer.optimizers)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Ends."""
        self.training.end()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Ends, for a training that failed."""
        self.training.end()
