"""Records a training of Lightning's Trainer.

lightning.Trainer(callbacks=[RecordMemory("run.pickle")]).fit(module)
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

try:
    from lightning.pytorch import Callback
except ImportError:  # the package under its older name
    from pytorch_lightning import Callback

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
