"""Trains in a framework with ullage's callback, or without, and prints what the training came to.

    frameworks.py SOURCE transformers|lightning|accelerate PATH|- [fails]

With "fails" the model raises in its second step. A PATH below a file cannot be written.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

sys.path.insert(0, sys.argv[1])  # where ullage is
FRAMEWORK, PATH = sys.argv[2:4]
FAILS = "fails" in sys.argv
STEPS, RANKS = 4, int(os.environ.get("WORLD_SIZE", "1"))


class Numbers(Dataset):
    """Rows of random numbers."""

    def __init__(self) -> None:
        self.rows = torch.randn(RANKS * STEPS * 8, 64, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": self.rows[index], "labels": self.rows[index]}


class Network(nn.Module):
    """A layer there and one back."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)
        self.num_calls = 0

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        self.num_calls += 1
        if FAILS and self.num_calls == 2:
            raise ValueError("the model's own")
        return {"loss": (self.down(self.up(x).relu()) - labels).square().mean()}


def train_with_transformers(model: Network) -> Any:
    from transformers import Trainer, TrainingArguments

    callback = None
    if PATH != "-":
        from ullage.act.callbacks.transformers import RecordMemory

        callback = RecordMemory(PATH, publish=False)
    with tempfile.TemporaryDirectory() as directory:
        arguments = TrainingArguments(
            output_dir=directory, max_steps=STEPS, per_device_train_batch_size=8, disable_tqdm=True,
            save_strategy="no", report_to="none", logging_steps=1,
        )  # fmt: skip
        callbacks = [] if callback is None else [callback]
        Trainer(model, arguments, train_dataset=Numbers(), callbacks=callbacks).train()
    return callback


def train_with_lightning(model: Network) -> Any:
    import lightning
    from lightning.pytorch.strategies import DDPStrategy

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: dict[str, Tensor], _: int) -> Tensor:
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    callbacks = []
    if PATH != "-":
        from ullage.act.callbacks.lightning import RecordMemory

        callbacks = [RecordMemory(PATH, publish=False)]
    # Lightning sends objects from rank to rank, and on the bare phantom NCCL carries no values.
    strategy = "auto" if RANKS == 1 else DDPStrategy(process_group_backend="gloo")
    trainer = lightning.Trainer(
        accelerator="gpu", devices=RANKS, max_steps=STEPS, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=callbacks,
        strategy=strategy,
    )  # fmt: skip
    trainer.fit(Module(), DataLoader(Numbers(), 8))
    return callbacks[0] if callbacks else None


def train_with_accelerate(model: Network) -> Any:
    from accelerate import Accelerator

    tracker = None
    if PATH != "-":
        from ullage.act.callbacks.accelerate import RecordMemory

        tracker = RecordMemory(PATH, publish=False)
    accelerator = Accelerator(log_with=tracker)
    accelerator.init_trackers("numbers", config={"steps": STEPS})
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(Numbers(), 8))
    for batch in loader:
        loss = model(**batch)["loss"]
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        accelerator.log({"loss": 0.0})
    accelerator.end_training()
    return tracker


def main() -> None:
    torch.manual_seed(0)
    model = Network()
    callback = globals()[f"train_with_{FRAMEWORK}"](model)
    total = sum(parameter.detach().double().sum().item() for parameter in model.parameters())
    result = [total, torch.rand(1).item(), torch.cuda.max_memory_allocated()]
    path = None if callback is None else callback.recording.path
    print(json.dumps({"result": result, "file": path and str(path)}))


main()
