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

from ullage.act.callbacks.training_guard import Plans, TrainingGuard
from ullage.act.callbacks.training_recording import TrainingRecording
from ullage.ground.errors import SpecError

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
    """Has a guard run each step of the optimization loop during `fit`: `training_step`, backward,
    clipping, and the optimizer's step unless gradients are accumulated.

    The arguments and errors are those of `ullage.guard`.
    """

    def __init__(self, plans: Plans = None, **options: object) -> None:
        super().__init__()
        self.training = TrainingGuard(plans, **options)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begins.

        Raises:
            SpecError: the strategy runs the steps itself, as DeepSpeed's.
        """
        strategy, loop = trainer.strategy, trainer.fit_loop.epoch_loop
        if strategy.handles_gradient_accumulation:
            raise SpecError(
                f"a step of {type(strategy).__name__} cannot be run again; use another strategy"
            )
        automatic, manual = loop.automatic_optimization, loop.manual_optimization
        is_automatic = pl_module.automatic_optimization
        # What they count is a part of checkpoints.
        counts = automatic.optim_progress if is_automatic else manual.optim_step_progress
        self.training.begin(
            automatic if is_automatic else manual, "run", strategy.model, trainer.optimizers,
            scaler=getattr(strategy.precision_plugin, "scaler", None), extra=[counts],
        )  # fmt: skip

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Ends."""
        self.training.end()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Ends, for a training that failed."""
        self.training.end()
