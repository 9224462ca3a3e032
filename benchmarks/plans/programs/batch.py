"""Trains a model with a batch that is given, or that a library looks for.

    batch.py MODEL --batch 16
    batch.py MODEL --finder accelerate|power|binsearch --result FILE

"power" and "binsearch" are the ways of Lightning's BatchSizeFinder. FILE gets the batch that was
found, and each that was tried. Needs transformers and timm, accelerate or lightning.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

TOKENS = 256
STEPS = 3  # as BatchSizeFinder makes in a trial
MODELS = ("gpt2", "resnet50", "vit_base_patch16_224")


class Trained(nn.Module):
    """A model with its loss on made-up samples; the number of them is all that it is given."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.is_text = name == "gpt2"
        if self.is_text:
            from transformers import GPT2Config, GPT2LMHeadModel

            self.model = GPT2LMHeadModel(GPT2Config())
        else:
            import timm

            self.model = timm.create_model(name)

    def forward(self, batch: int) -> Tensor:
        """The loss of `batch` samples."""
        device = next(self.parameters()).device
        with torch.autocast("cuda", dtype=torch.float16):
            if self.is_text:
                ids = torch.randint(0, 50257, (batch, TOKENS), device=device)
                return self.model(input_ids=ids, labels=ids).loss
            images = torch.randn(batch, 3, 224, 224, device=device)
            labels = torch.randint(0, 1000, (batch,), device=device)
            return functional.cross_entropy(self.model(images), labels)


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """As most programs do."""
    return torch.optim.AdamW(model.parameters(), lr=1e-4)


def train(batch: int, name: str) -> None:
    """A few steps."""
    model = Trained(name).to("cuda")
    optimizer = make_optimizer(model)
    for _ in range(STEPS):
        model(batch).backward()
        optimizer.step()
        optimizer.zero_grad()


def find_with_accelerate(name: str, tried: list[int]) -> int:
    """As accelerate's guide has it: the model is made inside."""
    from accelerate.utils import find_executable_batch_size

    @find_executable_batch_size
    def attempt(batch_size: int) -> int:
        tried.append(batch_size)
        train(batch_size, name)
        return batch_size

    return attempt()


def find_with_lightning(name: str, mode: str, tried: list[int], directory: Path) -> int:
    """As Lightning's guide has it: the tuner sets the module's batch size."""
    import lightning
    from lightning.pytorch.tuner import Tuner
    from torch.utils.data import DataLoader

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.trained = Trained(name)
            self.batch_size = 2

        def on_train_start(self) -> None:
            tried.append(self.batch_size)

        def training_step(self, samples: Tensor, _: int) -> Tensor:
            return self.trained(len(samples))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return make_optimizer(self)

        def train_dataloader(self) -> DataLoader:
            return DataLoader(range(1_000_000), batch_size=self.batch_size)

    trainer = lightning.Trainer(
        accelerator="gpu", devices=1, max_epochs=1, logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, default_root_dir=directory,
    )  # fmt: skip
    return Tuner(trainer).scale_batch_size(Module(), mode=mode)


def main() -> None:
    """Trains with a batch, or finds one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--finder", choices=("accelerate", "power", "binsearch"))
    parser.add_argument("--result", type=Path)
    args = parser.parse_args()
    if args.batch is not None:
        train(args.batch, args.model)
        return
    tried = []
    if args.finder == "accelerate":
        found = find_with_accelerate(args.model, tried)
    else:
        found = find_with_lightning(args.model, args.finder, tried, args.result.parent)
    args.result.write_text(json.dumps({"batch": found, "tried": tried}))


if __name__ == "__main__":
    main()
